"""The generation core: continuous batching over a transformers model.

A request's life, in eight steps:

1. `process`, or a thread, sends a `messages.Submit` to `worker`, whose loop steps the `step.Core`.
2. `Core` checks it, resolves its sampling parameters and makes a `scheduler.Sequence`; a constraint is compiled first.
3. `scheduler.Scheduler` admits it when a row and memory are free; `slabs` or `pages` find what is already computed.
4. Every step the scheduler plans one packed batch: a token for each running sequence, and chunks of prompts.
5. `runner` turns the plan into tensors and runs the model's forward; `attention` writes to and reads from the cache.
6. `sampler` chooses a token for each row, by that row's own parameters and random numbers.
7. `Core` detokenises, checks for the end, and replies with a `Delta`, and at the end with a `Finished`.
8. The sequence's keys and values stay in the prefix cache until their memory is needed.
"""
