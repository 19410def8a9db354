"""An engine in another process, perhaps on another machine: the same protocol, over HTTP.

The worker streams a generation's items as server-sent events. The last one is `event: complete_final`, which holds
nothing and says that everything was sent; a stream that ends without it lost something, however cleanly it ended.
"""
