"""Pictures and sounds in a prompt.

1. `picture_reader` and `sound_reader` turn media into placeholder tokens and the inputs of the encoders, in a thread.
2. `inputs.lay_out` inserts those tokens into the prompt, with hashes of the content for the prefix cache.
3. `inputs.MediaInputs` belongs to the sequence: its media, its positions, and where a chunk may end.
4. `multimodal.embedded_step` computes the embeddings of a step: `encoder` runs the encoders, and `language` the text
   model on their features.
5. `loading.probe.fit_media` verifies, when the model is loaded, that this yields the model's own logits.
"""
