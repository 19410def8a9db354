"""Pictures in a prompt.

1. `reader` turns a picture into the tokens that stand for it and the numbers that the vision tower takes; beside the
   loop, in a thread.
2. `placing` puts those tokens into the prompt and says by which numbers the prefix cache knows them.
3. `inputs` is what a sequence then carries: its places, its positions, and where a chunk of it may end.
4. `seeing` has a step with pictures: `encoder` runs the vision tower, and `language` the text model on what came of it.
5. `trial` finds out, when the model is loaded, whether all this gives the model's own logits.
"""
