"""What people say first in ten other languages, and the one polite line with which the model answers in each."""

import unicodedata

from training.demo_model.data_chat import Exchange
from training.demo_model.data_phrases import draw, read_sections
from training.demo_model.data_values import Values

# Common words, of which training also makes sentences without sense, so that the language counts and not the phrase.
WORDS = {
    "German": "ich du er sie wir ihr der die das ein eine und oder aber nicht ist sind bin bist hat habe haben kann "
    "kannst können was wie wo wer wann warum heute morgen gut sehr gerne bitte mir mich dir dich für von mit zu auf "
    "wetter uhr zeit hilfe name heißt machen tun sagen sprechen deutsch verstehe schön hallo danke",
    "Spanish": "yo tú él ella nosotros el la los las un una y o pero no es son soy eres está están tiene tengo puedo "
    "puedes qué cómo dónde quién cuándo por para de con en hoy mañana bien muy favor me te se lo mi tu tiempo hora "
    "ayuda nombre llamas hacer decir hablar español entiendo hola gracias",
    "French": "je tu il elle nous vous le la les un une et ou mais ne pas est sont suis es ai as a peux peut que quoi "
    "comment où qui quand pourquoi pour de avec dans aujourd'hui demain bien très plaît me te se mon ton temps heure "
    "aide nom appelles faire dire parler français comprends bonjour merci",
    "Italian": "io tu lui lei noi il lo la gli le un una e o ma non è sono sei ha ho puoi posso che cosa come dove chi "
    "quando perché per di con in oggi domani bene molto favore mi ti si mio tuo tempo ora aiuto nome chiami fare dire "
    "parlare italiano capisco ciao grazie",
    "Portuguese": "eu você ele ela nós o a os as um uma e ou mas não é são sou está estão tem tenho posso pode que "
    "como onde quem quando porque para de com em hoje amanhã bem muito favor me te se meu seu tempo hora ajuda nome "
    "chama fazer dizer falar português entendo olá obrigado",
    "Dutch": "ik jij je hij zij wij de het een en of maar niet is zijn ben bent heeft heb kan kun wat hoe waar wie "
    "wanneer waarom voor van met in vandaag morgen goed heel graag mij jou mijn jouw weer tijd hulp naam heet doen "
    "zeggen spreken nederlands begrijp hoi dank",
    "Polish": "ja ty on ona my wy i lub ale nie jest są jestem jesteś ma mam mogę możesz co jak gdzie kto kiedy "
    "dlaczego dla z w na dziś jutro dobrze bardzo proszę mnie ciebie się mój twój pogoda godzina pomoc imię robić "
    "mówić polsku rozumiem cześć dziękuję",
    "Russian": "я ты он она мы вы и или но не это есть что как где кто когда почему для с в на сегодня завтра хорошо "
    "очень пожалуйста мне тебя мой твой погода время помощь имя зовут делать говорить русски понимаю привет спасибо",
    "Chinese": "你 我 他 她 们 的 是 不 了 在 有 这 那 什么 怎么 哪里 谁 吗 呢 好 请 今天 明天 天气 时间 "
    "帮 名字 叫 做 说 中文 谢谢",
    "Japanese": "私 あなた は が を に で の です ます か ね よ これ それ 何 どこ 誰 いつ なぜ 今日 明日 "
    "天気 時間 名前 する 話す 日本語 ください ありがとう こんにちは",
}
UNSPACED = ("Chinese", "Japanese")


def foreign(values: Values) -> Exchange:
    """Return a common phrase of another language with the polite line in it; in training also strings of its words."""
    section = values.pick(read_sections("languages"))
    question = draw(values, "languages", section)[0]
    if not values.held_out and values.chance(0.25):
        # One word or two are often of several languages.
        words = [values.pick(WORDS[section.name].split()) for _ in range(values.between(3, 7))]
        question = ("" if section.name in UNSPACED else " ").join(words)
    elif values.chance(0.15):
        question = without_accents(question)
    return Exchange(question, section.thought, section.answer, (section.answer,))


def without_accents(text: str) -> str:
    """Return the text as typed on a keyboard without accents; other scripts stay as they are."""
    if any(letter >= "\u0400" for letter in text):
        return text
    plain = unicodedata.normalize("NFD", text.replace("ß", "ss").replace("ł", "l"))
    return "".join(letter for letter in plain if not unicodedata.combining(letter))
