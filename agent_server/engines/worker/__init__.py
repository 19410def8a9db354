"""An engine in another process, perhaps on another machine: the same protocol, over HTTP.

The worker streams a generation's items as server-sent events. The last event is `event: complete_final`, which has no
data and says that every item was sent. A stream that ends without it is incomplete, even if its HTTP body is not.
"""
