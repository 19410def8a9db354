"""The description of the HTTP API: an OpenAPI 3.1 document, and the page that shows it.

`document` builds it from the served routes (document.py), a row for each of them (operations.py), the parsers' tables
of request fields, and the schemas of the responses (answers.py).
"""

from agent_server.http.openapi.document import document

__all__ = ["document"]
