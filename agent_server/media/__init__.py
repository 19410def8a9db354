"""What a message carries beside text: content parts in, decoded pictures out.

`sources` gets a part's bytes, `fetching` those that lie elsewhere, `decoding` makes pixels of them in processes that
may die (`decoder_child`), and `intake` is all of it for one request.
"""
