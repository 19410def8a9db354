"""What a message carries beside text: content parts in, decoded media out.

`sources` gets a part's bytes, `fetching` those that lie elsewhere, `decoding` reads them in processes that may die
(`decoder_child`, with `document_decoder` for PDFs and `sound_decoder`), `documents` makes text and pictures of
documents, and `intake` is all of it for one request.
"""
