"""Between a connection and the routes: limits on connections, who may ask, ids of requests, error answers."""
