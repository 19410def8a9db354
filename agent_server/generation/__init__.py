"""The generation core: continuous batching over a transformers model.

A request's life, in eight steps:

1. `process` or a thread hands its `messages.Submit` to `worker`, which gives it to `step.Core`.
2. `Core` checks it, resolves its sampling parameters and makes a `scheduler.Sequence`; a constraint is compiled first.
3. `scheduler.Scheduler` admits it when a row and memory are free; `slabs` or `pages` find what is already computed.
4. Every step the scheduler plans one packed batch: a token for each running sequence, and chunks of prompts.
5. `runner` turns the plan into tensors and runs the model; `attention` writes to and reads from `kv_cache`.
6. `sampler` chooses a token for each row, by that row's own parameters and random numbers.
7. `Core` detokenises, looks for the end and hands out a `Delta`, and at last a `Finished`.
8. The sequence's memory stays behind as a prefix cache until its memory is needed.
"""
