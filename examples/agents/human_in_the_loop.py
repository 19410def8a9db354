"""Human in the loop: the model proposes steps through the page's tool `generate_task_steps`, the user edits them.

The arguments stream, so the page shows the steps as they are written. The run ends with the call pending; what the
user chose comes back as the call's result.

    agent-server serve --agent examples/agents/human_in_the_loop.py:agent
"""

from agent_server import Agent

agent = Agent(
    name="human_in_the_loop",
    description="Plans a task in steps that the user may change.",
    instructions=(
        "When the user wants something done, call generate_task_steps with short steps, each with a description and "
        'the status "enabled". When the answer comes, carry on with the steps that the user kept, in one sentence.'
    ),
)
