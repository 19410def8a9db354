"""Pictures and sounds in a prompt.

1. `picture_reader` and `sound_reader` turn one into the tokens that stand for it and the numbers that its tower takes;
   beside the loop, in a thread.
2. `placing` puts those tokens into the prompt and says by which numbers the prefix cache knows them.
3. `inputs` is what a sequence then carries: its places, its positions, and where a chunk of it may end.
4. `embedding` has a step with media: `encoder` runs the towers, and `language` the text model on what came of it.
5. `trial` finds out, when the model is loaded, whether all this gives the model's own logits.
"""
