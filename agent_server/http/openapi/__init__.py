"""The description of the HTTP API: an OpenAPI 3.1 document, and the page that shows it.

`document` is made from the routes that are served (document.py), one row for each of them (operations.py), the tables
of request fields that the parsers read, and the shapes of the answers (answers.py).
"""

from agent_server.http.openapi.document import document

__all__ = ["document"]
