"""The media of messages: content parts in, decoded media out.

`fetching` gets the bytes of a part, `decoding` decodes them in processes that may crash (`decoder_child`, with
`document_decoder` for PDFs and `sound_decoder`), `documents` converts documents to text and pictures, and `intake` does
all of this for one request.
"""
