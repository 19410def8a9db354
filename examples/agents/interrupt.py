"""Interrupt: tools of the server's that stop for a person, for an approval and for an answer.

A call of `send_email` waits until somebody approves it, perhaps with other arguments. `schedule_meeting` asks for a
time of its own accord. In both cases the run ends with an interrupt, and the next run carries the answer.

    agent-server serve --agent examples/agents/interrupt.py:agent
"""

from agent_server import Agent, ToolContext, tool

SLOTS = ["Monday 10:00", "Tuesday 14:00", "Friday 9:30"]


@tool(requires_approval=True, approval_seconds=3600, approval_message=lambda mail: f"Send this to {mail['to']}?")
def send_email(to: str, subject: str, body: str) -> str:
    """Send an email.

    Args:
        to: the address
        subject: the subject line
        body: the text
    """
    return f"Sent to {to}: {subject}"


@tool
def schedule_meeting(topic: str, context: ToolContext) -> str:
    """Find a time for a meeting.

    Args:
        topic: what the meeting is about
    """
    answer = context.ask(
        f"When shall we meet about {topic}?",
        {"type": "object", "properties": {"slot": {"enum": SLOTS}}, "required": ["slot"]},
    )
    return f"The meeting about {topic} is on {answer['slot']}." if answer else "The user chose no time."


agent = Agent(
    name="interrupt",
    description="Sends mail and makes appointments, and asks first.",
    instructions="Send mail with send_email, make appointments with schedule_meeting, then say what was done.",
    tools=[send_email, schedule_meeting],
)
