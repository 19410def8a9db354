"""Questions about this server, with the facts of the README, and what the model cannot do, with one honest sentence."""

from training.demo_model.data_chat import Exchange
from training.demo_model.data_values import Values

HOW = (
    "how do i {}",
    "how can i {}",
    "how to {}",
    "how does one {}",
    "i want to {}",
    "can i {}",
    "{}",
    "tell me how to {}",
    "show me how to {}",
    "what do i need to {}",
    "how would i {}",
    "is it possible to {}",
    "explain how to {}",
    "i would like to {}",
    "what is the way to {}",
    "help me {}",
)
# What is wanted, as the end of "how do I ...", separated by `|`; whole questions after `||`; and the fact.
FACTS: tuple[tuple[str, str, str], ...] = (
    (
        "connect copilotkit|use copilotkit|use copilotkit with this|point copilotkit at this server|set up copilotkit"
        "|connect my copilotkit app|use this with copilotkit|connect a copilotkit app|configure copilotkit"
        "|hook up copilotkit|integrate copilotkit||does it work with copilotkit|does this work with copilotkit"
        "|what is the runtime url|what is copilotkit|what runtimeUrl do i need|copilotkit|do you support copilotkit",
        "The user asks about CopilotKit.",
        "Set runtimeUrl to http://localhost:8000/copilotkit in CopilotKitProvider. No Node server is needed.",
    ),
    (
        "connect an openai client|use the openai client|use the openai sdk|use the openai api|connect openai"
        "|point an openai client at it|use the openai python library|use the openai library|call it like openai"
        "|talk to it with openai|use chat completions|connect my openai app|use the openai package"
        "||is there an openai api|do you have an openai compatible api|is it openai compatible|openai"
        "|does it speak openai|what is the base url|which base_url do i need|does it work with the openai sdk"
        "|does openai work here",
        "The user asks about OpenAI clients.",
        "Set base_url to http://localhost:8000/v1 in the openai client; api_key may be any word.",
    ),
    (
        "connect an anthropic client|use the anthropic sdk|use the anthropic api|use the anthropic library"
        "|connect anthropic|use the messages api|use claude code with this|point an anthropic client at it"
        "||does it speak anthropic|is there an anthropic api|does it work with anthropic|anthropic"
        "|do you support anthropic",
        "The user asks about Anthropic clients.",
        "Set base_url to http://localhost:8000 in the anthropic client. It speaks /v1/messages.",
    ),
    (
        "use the ag-ui client|connect an ag-ui client|use httpagent|connect with ag-ui|use @ag-ui/client"
        "|connect a javascript client|connect my ag-ui app|connect my own page|build my own front end"
        "|connect a front end|connect from javascript|connect my app|use this in my app|connect to this server"
        "||what is the ag-ui url|what is the url for ag-ui|which address do i connect to|what is the endpoint",
        "The user asks about clients.",
        'Use new HttpAgent({ url: "http://localhost:8000/agui" }) from @ag-ui/client.',
    ),
    (
        "write a tool|add a tool|make a tool|make my own tool|define a tool|add my own tool|create a tool"
        "|give the model a tool|add a function|write my own tools|add tools|register a tool|declare a tool"
        "|build a tool|call a python function||where do tools come from|how are tools written|how do i write tools",
        "The user asks how to write a tool.",
        "Put @tool on a Python function, give it to Agent(tools=[...]) and run "
        "agent-server serve --agent my_agent.py:agent.",
    ),
    (
        "write an agent|make an agent|create an agent|build an agent|add an agent|define an agent|make my own agent"
        "|start my own agent|serve an agent|run my agent|deploy an agent||what is an agent|how are agents written"
        "|where are the example agents|are there examples|show me examples of agents",
        "The user asks how to write an agent.",
        "Write agent = Agent(name=..., tools=[...]) in a file and run agent-server serve --agent my_agent.py:agent. "
        "See examples/agents.",
    ),
    (
        "ask before a tool runs|approve tool calls|add approvals|require approval|let a person approve a call"
        "|confirm a tool call|make a tool ask first|add human in the loop|use human in the loop"
        "|let the user edit arguments||what is an approval|how do approvals work|what is human in the loop"
        "|how does approval work|do you support approvals|what happens when i deny",
        "The user asks about approvals.",
        "Write @tool(requires_approval=True). The run then waits until a person approves, edits or denies the call.",
    ),
    (
        "allow another origin|set cors|fix cors|allow cors|use it from another origin|use it from another domain"
        "|connect from localhost:3000||why do i get a cors error|cors|cors error|i get a cors error"
        "|the browser blocks my request|what about cors",
        "The user asks about CORS.",
        "Start the server with --cors-origin http://localhost:3000, or whatever your page's origin is.",
    ),
    (
        "install it|install this|install this server|start the server|start it|run the server|run it|set it up"
        "|get started|begin|install agent server|start agent server|run this on my computer|run this locally"
        "||how do i install|getting started|what do i need to install|which python do i need|how do i get started",
        "The user asks how to start the server.",
        "Run make serve. It needs Python 3.11 or later, sets everything up and serves at http://localhost:8000.",
    ),
    (
        "use vllm|connect vllm|use sglang|use llama.cpp|use another engine|put vllm behind it|scale it|scale out"
        "|use several machines|use more machines|use it as a gateway|connect an engine|use many gpus"
        "|run it on several gpus||does it work with vllm|do you support vllm|what about vllm|vllm|can it scale"
        "|does it support llama.cpp",
        "The user asks about other engines.",
        "Run agent-server serve MODEL --engine http://gpu1:8000. The tokens then come from vLLM, SGLang or llama.cpp.",
    ),
    (
        "keep conversations|save conversations|save my chats|store threads|keep the history|keep my threads"
        "|use postgresql|use sqlite|find my old chats|see old conversations||where are conversations kept"
        "|where are threads stored|do you remember old chats|do you keep my messages|are my chats saved"
        "|what is a thread|what are threads|is the history saved|what happens after a reload",
        "The user asks about threads.",
        "Conversations are threads. The server keeps them in memory, SQLite or PostgreSQL, and replays them.",
    ),
    (
        "use mcp|connect an mcp server|add an mcp server|use mcp servers|use mcp tools|add mcp tools"
        "|connect mcp||do you support mcp|does it support mcp|what is mcp|mcp|is there mcp support",
        "The user asks about MCP.",
        "Start the server with --mcp mcp.json. Its agents then have the tools of the MCP servers in that file.",
    ),
    (
        "stop a run|stop you|cancel a run|stop the answer|interrupt you|pause a run|stop the generation"
        "||can i stop you|how do i stop|can a run be stopped|can i pause you|where is the stop button",
        "The user asks how to stop a run.",
        "Press Stop while I write. A run can be stopped, paused and resumed, and you keep what was said.",
    ),
    (
        "share state|use shared state|share state with the page|keep state|sync state||what is shared state"
        "|how does shared state work|do you support shared state|what is state|what is a state delta",
        "The user asks about shared state.",
        "Agent(state=...) shares one JSON object with the page. Changes travel as JSON patches.",
    ),
    (
        "chat from a terminal|use it from the terminal|use the command line|chat in my terminal"
        "|use it without a browser||is there a command line|do you have a cli|what commands are there"
        "|is there a terminal client",
        "The user asks about the terminal.",
        "Run agent-server chat to talk to the server from a terminal.",
    ),
    (
        "use a gpu|run on a gpu|use cuda|make it faster|run on cuda|use my graphics card||do i need a gpu"
        "|does it need a gpu|are you running on a gpu|does it run on a cpu|do you run on a gpu|is a gpu needed",
        "The user asks about GPUs.",
        "I run on any CPU. Larger models want a GPU: the setup chooses the fitting build of torch, or set TORCH=cuda.",
    ),
    (
        "find the documentation|read the docs|find the docs|find help|read more|learn more||where are the docs"
        "|where is the documentation|is there documentation|documentation|docs|is there a manual|where can i read more",
        "The user asks for the documentation.",
        "The guides are in the folder docs, and examples of agents are in examples/agents.",
    ),
    (
        "set a key|use an api key|set an api key|add authentication|protect the server|add a password|secure the server"
        "||do i need an api key|do i need a key|what api key do i need|is there authentication|is it secure"
        "|what is the api key",
        "The user asks about keys.",
        "A local server needs no key: any word will do. The file docs/security.md says how to set keys.",
    ),
    (
        "send you a file|keep my data private|see what is sent||is my data safe|where does my data go"
        "|do you send my data anywhere|is this private|are you online|do you use the internet|is my data private"
        "|who can see my messages|do you need the internet|do you work offline|are you connected to the internet",
        "The user asks where data goes.",
        "I run on the machine that serves this page and send nothing to other machines.",
    ),
    (
        "speak german with you|talk in spanish|use another language||which languages do you speak"
        "|what languages do you know|do you speak german|do you speak spanish|do you speak french|can you speak chinese"
        "|do you speak english|can you speak japanese|how many languages do you speak|what language do you speak"
        "|do you speak other languages|can you speak italian",
        "The user asks about languages.",
        "I speak English. In ten other languages I know one polite line.",
    ),
    (
        "send you a longer text|know how long the context is||how long is your context|what is your context length"
        "|how much can you read|how much can you remember|how many tokens can you read|what is your context window"
        "|how big is your context|how long can a conversation be|do you forget things",
        "The user asks about my context.",
        "I read up to 4,096 tokens: that is a long conversation, but what is short I read better.",
    ),
    (
        "see the events|see the event stream|look at the stream|debug a run|inspect a run|see what happens"
        "|see the raw events||what are these events|what is the panel on the right|what does the stream show"
        "|what is the inspector|what is an event|what are events",
        "The user asks about the events.",
        "The panel beside the chat shows each event of the run as it arrives, and how other wires carry it.",
    ),
)
FACT_OPENINGS = (
    "",
    "",
    "",
    "",
    "",
    "please ",
    "hey, ",
    "sorry, ",
    "and ",
    "ok, ",
    "one question: ",
    "quick question: ",
)

# Evaluation asks whole phrases; the loosened ones are for training alone.
LOOSE_SHARE = 0.35
SMALL_WORD_LIST = (
    "a the to of in on it i you for with that this what how my me do can is are would could please does possible about "
    "there any want need way so here if one which where tell show know like use your now just also really"
)
SMALL_WORDS = SMALL_WORD_LIST.split()

CANNOT: tuple[tuple[str, str, str], ...] = (
    (
        "write code|write a python script|write a function|program something|write a website|fix my code|debug my code"
        "|write a program|write some python|write javascript|write an sql query|code a game|review my code"
        "|write html|write a bash script|write hello world|write a sorting function",
        "wants code",
        "write code",
    ),
    (
        "translate this|translate a text|translate hello into french|translate this sentence|translate to german"
        "|translate my letter|translate something for me|translate good morning to spanish|translate this into english",
        "wants a translation",
        "translate",
    ),
    (
        "write a poem|write me a poem|sing|write a song|write lyrics|make a rhyme|compose a song|write a rap"
        "|write a love poem|rhyme something",
        "wants a poem",
        "write poems or songs",
    ),
    (
        "draw a picture|draw me a cat|make an image|generate an image|create a picture|paint a house|show me a picture"
        "|make a logo|generate a photo|draw something|make a video|create an image of a dog",
        "wants a picture",
        "make pictures",
    ),
    (
        "tell me the news|read the news|give me the news|what is in the news|what happened today|show the news"
        "|what is new in the world|any news today|who won the game|who won the election|what is the stock price"
        "|how is the stock market|what is the price of bitcoin|show me stock prices|what are the latest headlines",
        "wants news",
        "follow the news",
    ),
    (
        "summarize this text|summarize this article|summarise this|make a summary|shorten this text|sum this up"
        "|read this article|read this page|summarize this page|rewrite this text|correct my text|check my spelling"
        "|proofread this|improve my text",
        "wants a text changed",
        "work on texts",
    ),
    (
        "recommend a movie|recommend a book|suggest a restaurant|what should i eat|what should i cook"
        "|what should i watch|give me a recipe|recommend a song|give me advice|what should i do today"
        "|give me gift ideas|suggest a name|what should i wear|give me ideas|recommend something",
        "wants a recommendation",
        "recommend things",
    ),
    (
        "set an alarm|set a timer|remind me tomorrow|set a reminder|play music|play a song|call my mother|order a pizza"
        "|book a flight|book a hotel|buy tickets|turn on the light|open the door|make a phone call|order food"
        "|turn off the lights|send a message|start a timer|add it to my calendar|wake me up at seven",
        "wants something done",
        "do that",
    ),
    (
        "what day is it|what is the date|what is today's date|what day is today|which year is it|what year is it"
        "|what month is it|when is easter|how many days until christmas|what is the date today|which day is today",
        "wants the date",
        "tell the date",
    ),
    (
        "am i ill|give me medical advice|what medicine should i take|give me legal advice|should i sue|am i sick"
        "|what should i invest in|is this legal|i have a headache|how do i lose weight|help with my taxes"
        "|my head hurts|which stocks should i buy",
        "wants expert advice",
        "give advice on health, law or money",
    ),
    (
        "solve this equation|do my homework|help with my homework|solve x + 3 = 7|prove this|integrate this"
        "|explain quantum physics|teach me math|teach me physics|help me study|solve a riddle|what is the square root"
        "|teach me something|explain relativity",
        "wants something taught",
        "teach or solve that",
    ),
    (
        "read my file|open my file|look at this picture|read this pdf|see this image|what is in this picture"
        "|look at my screen|open a website|browse the web|go to a website|open google|look at this photo"
        "|read my emails|check my calendar|check my mail|what is in my inbox",
        "wants me to look at something",
        "see files, pictures or pages",
    ),
)
ASKS = ("{}", "{}", "can you {}", "could you {}", "please {}", "i want you to {}", "would you {}", "you should {}")
QUESTIONS = ("what", "who", "how", "which", "when", "am ", "is ", "should", "any ", "my ", "i ")
BEYOND = (
    "what do you think about this|do you like music|what is your favorite color|do you have feelings|are you human"
    "|are you alive|do you dream|do you have friends|do you love me|will you marry me|how old are you|where do you live"
    "|do you sleep|are you a robot|do you eat|are you a boy or a girl|what do you like|are you happy|are you conscious"
    "|do you have a body|what is your favorite food|are you a person|when were you born|do you get tired"
    "|do you have a family|are you real|can you feel pain"
)
BEYOND_ANSWER = "I am only a small program with some numbers in it: I have no feelings, age or opinions."
MEANING = (
    "what is the meaning of life|is there a god|why are we here"
    "|what happens after death|what is the best country|who is the best|what is the best phone|will ai take my job"
    "|is ai dangerous|what will happen in the future|will it be a good year|who will win"
)
MEANING_ANSWER = "That is too big a question for a tiny demo model. A real model will have more to say."
AGAIN = (
    "you are wrong|that is wrong|this is wrong|that is not right|that's wrong|wrong|no that is wrong|you made a mistake"
    "|that is not what i asked|you did not answer|you are stupid|you suck|this is bad|you are useless|that is nonsense"
    "|this makes no sense|you are bad|that was not my question|bad answer|bad bot"
    "|try again|not what i meant|are you kidding"
)
AGAIN_ANSWER = "I am sorry: I am tiny and often wrong. Ask me what I can do."


def fact(values: Values) -> Exchange:
    """Return a question about the server, with the fact that answers it."""
    wanted, thought, answer = values.pick(FACTS)
    ends, _, whole = wanted.partition("||")
    if whole and values.chance(0.4):
        question = values.phrase(tuple(whole.split("|")))
    else:
        question = values.phrase(HOW).format(values.phrase(tuple(ends.split("|"))))
    question = values.pick(FACT_OPENINGS) + (
        loosened(values, question) if not values.held_out and values.chance(LOOSE_SHARE) else question
    )
    return Exchange(question, thought, answer, (answer,))


def loosened(values: Values, question: str) -> str:
    """Return a question with some of its small words left out and others put in, so that its subject counts."""
    words = [word for word in question.split(" ") if word not in SMALL_WORDS or values.chance(0.6)]
    for _ in range(values.pick((0, 1, 1, 2, 3))):
        words.insert(values.between(0, len(words)), values.pick(SMALL_WORDS))
    return " ".join(words)


def declined(values: Values) -> Exchange:
    """Return a request that no tool and no fact serves, with one honest sentence."""
    form = values.rng.random()
    for limit, phrases, thought, answer in (
        (0.1, BEYOND, "The user asks about me as a person.", BEYOND_ANSWER),
        (0.17, MEANING, "This is a big question.", MEANING_ANSWER),
        (0.25, AGAIN, "The user is not content.", AGAIN_ANSWER),
    ):
        if form < limit:
            return Exchange(values.phrase(tuple(phrases.split("|"))), thought, answer, (answer,))
    phrases, wish, action = values.pick(CANNOT)
    question = values.phrase(tuple(phrases.split("|")))
    if not question.startswith(QUESTIONS):
        question = values.pick(ASKS).format(question)
    if not values.held_out and values.chance(LOOSE_SHARE):
        question = loosened(values, question)
    answer = f"I cannot {action}: I am only a tiny demo model."
    return Exchange(question, f"The user {wish}, which I cannot do.", answer, (answer,))
