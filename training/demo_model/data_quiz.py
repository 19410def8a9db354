"""Questions of a quiz, and requests for code in a language: for training alone, evaluation has lines of `phrases/`.

People ask a chatbot what they would ask at a quiz: long questions full of names, with the question word in any place. A
name behind "in", "of" or "from" is no place whose weather is asked for, and a number is no sum.
"""

from training.demo_model.data_values import Values

_NOUN_LIST = (
    "film song band river king queen president war battle book novel play painter museum planet metal sport team "
    "player league prize actor singer character company island mountain bone disease bird dish drink currency flag "
    "street bridge party album instrument machine robot computer empire treaty poem god festival saint desert lake "
    "dance tower ship spice language country city continent sea capital animal fruit century sculptor composer "
    "inventor goddess province"
)
_ADJECTIVE_LIST = (
    "first last oldest youngest largest smallest tallest longest richest fastest famous northern highest lowest"
)
_VERB_LIST = (
    "wrote won lost sang played painted invented discovered ruled visited directed married founded named buried built "
    "sold released designed beat succeeded betrayed mentioned crowned used called"
)
_LANGUAGE_LIST = "Python JavaScript TypeScript Java Rust Go SQL Bash React C++ Ruby Kotlin Terraform Docker AWS Django"
NOUNS, ADJECTIVES, VERBS = _NOUN_LIST.split(), _ADJECTIVE_LIST.split(), _VERB_LIST.split()
LANGUAGES = _LANGUAGE_LIST.split()
THINGS = (
    "stack", "queue", "hash table", "heap", "graph search", "trie", "decorator", "generator", "test", "loop",
    "struct", "websocket client", "web server", "login form", "join", "subquery", "index", "trigger", "pipeline",
    "container", "state machine", "linked list", "sorting function", "parser", "regular expression", "thread pool",
    "lock", "map",
)  # fmt: skip
CODE_FORMS = (
    "write a {0} in {1}", "can you write a {0} in {1}", "make a {0} in {1}", "build a {0} with {1}",
    "show me a {0} in {1}", "how do i write a {0} in {1}", "create a {1} {0}", "write a {1} {0} with a {2}",
    "can you build a {0}", "implement a {0}", "how to do a {0} in {1}", "give me a {1} {0}", "i need a {0} in {1}",
    "can you code a {0} using {1}", "a {0} in {1}",
)  # fmt: skip
QUIZ_FORMS = (
    "which {a} did {p} and {p2} {v} in {y}", "in which {a} did {p} {v} the {b}", "in what {a} was {p} {v}",
    "what {a} {v} the {b} of {c}", "who {v} the {j} {a} of {c}", "who {v} {t} in {y}", "which {j} {a} {v} {p}",
    "the {j} {a} of {c} is called what", "{p} {v} a {b} before what {a}", "what {a} is {t} from",
    "how many {a}s of {p} end with the letter {l}", "{c} is the {j} {a} of which {b}",
    "in {c} what is the {j} {a} known as", "where was the {a} of {p} {v}", "what were the two {a}s in {t} known as",
    "complete the {a} of the {y} {b} by {p}", "on which {a} did {p} find the {j} {b}",
    "for what {a} was {p} {v} in {y}", "which {a} has the {j} {b} in {c}", "what {y} {a} was {p}’s {j} {b}",
    "{t} {v} in what {a}", "what {a} won the most {b}s in {y}", "a {a} is given to what",
    "from which {a} does the {b} come", "the {a} and the {b} are what", "which of {p}’s {a}s is the {j}",
    "which {a} of {c} {v} {p}’s {b}", "at what {a} did {p} {v} {t}", "name the {a} that {v} {c}",
    "what {a} did the {b} {v}", "which {c} {a} {v} {p} and {p2}", "by what name is the {j} {a} of {c} known",
    "is {p} the {a} of {c}", "what is it like being a {a}", "do you know what a {a} is", "do you play {a}",
    "do you know {a}s", "do you want to {v} a {a}",
)  # fmt: skip


def quiz_question(values: Values) -> str:
    """Return a question about the world with names in it."""
    title = " ".join(word.title() for word in values.words(1, 3).split())
    named = {"a": values.pick(NOUNS), "b": values.pick(NOUNS), "j": values.pick(ADJECTIVES), "v": values.pick(VERBS)}
    people = {"p": _person(values), "p2": _person(values), "c": values.city().title(), "l": values.pick("ABDEKMNOPSTY")}
    quoted = values.pick(("“{}”", '"{}"', "‘{}’", "{}")).format(title)
    question = values.pick(QUIZ_FORMS).format(**named, **people, t=quoted, y=values.between(1700, 2030))
    return question if values.chance(0.7) else question.replace("’", "'")


def subject(values: Values) -> str:
    """Return what a quiz asks about, as words behind "what is"."""
    start = f"the {values.pick(ADJECTIVES)} {values.pick(NOUNS)}"
    return values.pick((start, f"{start} of {values.city()}", f"the {values.pick(NOUNS)} of a {values.pick(NOUNS)}"))


def code_request(values: Values) -> str:
    """Return a request for a thing in a programming language."""
    language = values.pick(LANGUAGES)
    language = language if values.chance(0.6) else language.lower()
    return values.pick(CODE_FORMS).format(values.pick(THINGS), language, values.pick(THINGS))


def _person(values: Values) -> str:
    return f"{values.person()} {values.person()}" if values.chance(0.6) else values.person()
