"""What people say first in ten other languages, and the one polite line with which the model answers in each."""

from training.demo_model.data_chat import Exchange
from training.demo_model.data_values import Values

THOUGHT = "This is not English."
# The phrases, separated by `|`, and the line.
LANGUAGES: dict[str, tuple[str, str]] = {
    "German": (
        "hallo|guten tag|guten morgen|guten abend|wie geht es dir|wie geht's|wie geht es ihnen|danke|vielen dank"
        "|danke schön|tschüss|auf wiedersehen|wer bist du|was kannst du|was kannst du tun|wie heißt du"
        "|sprichst du deutsch|kannst du deutsch|ich verstehe nicht|kannst du mir helfen|hilfe|bitte|ja|nein"
        "|wie ist das wetter|was ist das|hallo, wie geht es dir|servus|moin|wie ist das wetter in berlin",
        "Hallo! Ich bin nur ein winziges Demo-Modell und kann leider nur Englisch.",
    ),
    "Spanish": (
        "hola|buenos días|buenas tardes|buenas noches|cómo estás|como estas|qué tal|que tal|gracias|muchas gracias"
        "|adiós|hasta luego|quién eres|quien eres|qué puedes hacer|que puedes hacer|cómo te llamas|hablas español"
        "|hablas espanol|no entiendo|puedes ayudarme|ayuda|por favor|sí|hola, cómo estás|qué es esto|qué tiempo hace"
        "|hola que tal|me puedes ayudar|qué hora es",
        "¡Hola! Soy un pequeño modelo de demostración y solo hablo inglés.",
    ),
    "French": (
        "bonjour|salut|bonsoir|bonne nuit|comment ça va|ça va|comment vas-tu|comment allez-vous|merci|merci beaucoup"
        "|au revoir|qui es-tu|qui êtes-vous|que peux-tu faire|que sais-tu faire|comment tu t'appelles"
        "|parlez-vous français|tu parles français|parles-tu français|je ne comprends pas|peux-tu m'aider|aide-moi"
        "|s'il vous plaît|oui|non|quel temps fait-il|bonjour, comment ça va|quelle heure est-il|qu'est-ce que c'est",
        "Bonjour ! Je ne suis qu'un petit modèle de démonstration et je ne parle qu'anglais.",
    ),
    "Italian": (
        "ciao|buongiorno|buonasera|buona notte|come stai|come sta|come va|grazie|grazie mille|arrivederci|chi sei"
        "|cosa puoi fare|cosa sai fare|come ti chiami|parli italiano|non capisco|puoi aiutarmi|aiuto|per favore|sì"
        "|che tempo fa|ciao, come stai|che ore sono|che cos'è questo",
        "Ciao! Sono solo un piccolo modello dimostrativo e parlo soltanto inglese.",
    ),
    "Portuguese": (
        "olá|oi|bom dia|boa tarde|boa noite|tudo bem|como vai|como vai você|obrigado|obrigada|muito obrigado|tchau"
        "|quem é você|quem és tu|o que você pode fazer|o que sabes fazer|qual é o seu nome|você fala português"
        "|falas português|não entendo|pode me ajudar|ajuda|sim|olá, tudo bem|que horas são|como está o tempo",
        "Olá! Sou apenas um pequeno modelo de demonstração e só falo inglês.",
    ),
    "Dutch": (
        "hoi|hallo daar|goedemorgen|goedemiddag|goedenavond|hoe gaat het|hoe gaat het met je|dank je|dank je wel"
        "|bedankt|tot ziens|wie ben je|wat kun je|wat kan je doen|hoe heet je|spreek je nederlands|ik begrijp het niet"
        "|kun je me helpen|alsjeblieft|nee|hoe is het weer|hoe laat is het|wat is dit",
        "Hallo! Ik ben maar een klein demomodel en spreek alleen Engels.",
    ),
    "Polish": (
        "cześć|dzień dobry|dobry wieczór|dobranoc|jak się masz|co słychać|jak leci|dziękuję|dzięki|do widzenia"
        "|kim jesteś|co potrafisz|co umiesz|jak masz na imię|mówisz po polsku|czy mówisz po polsku|nie rozumiem"
        "|możesz mi pomóc|pomoc|proszę|tak|nie|jaka jest pogoda|która godzina",
        "Cześć! Jestem tylko małym modelem pokazowym i znam jedynie angielski.",
    ),
    "Russian": (
        "привет|здравствуйте|здравствуй|доброе утро|добрый день|добрый вечер|как дела|как ты|спасибо"
        "|большое спасибо|пока|до свидания|кто ты|кто вы|что ты умеешь|как тебя зовут|ты говоришь по-русски"
        "|не понимаю|помоги мне|помощь|пожалуйста|да|нет|какая погода|который час|привет, как дела",
        "Привет! Я лишь маленькая модель и знаю только английский.",
    ),
    "Chinese": (
        "你好|您好|早上好|晚上好|你好吗|谢谢|谢谢你|再见|你是谁|你能做什么|你会做什么|你叫什么名字|你会说中文吗"
        "|我不明白|帮帮我|请|是|不|天气怎么样|现在几点|这是什么|嗨",
        "你好！我只会英文。",
    ),
    "Japanese": (
        "こんにちは|おはよう|おはようございます|こんばんは|元気ですか|お元気ですか|ありがとう|ありがとうございます"
        "|さようなら|あなたは誰ですか|何ができますか|名前は何ですか|日本語を話せますか|わかりません|助けて|はい"
        "|いいえ|天気はどうですか|今何時ですか|これは何ですか|はじめまして",
        "こんにちは！英語だけ話せます。",
    ),
}


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
    language = values.pick(tuple(LANGUAGES))
    phrases, line = LANGUAGES[language]
    question = values.phrase(tuple(phrases.split("|")))
    if not values.held_out and values.chance(0.4):
        words = [values.pick(WORDS[language].split()) for _ in range(values.between(2, 6))]
        question = ("" if language in UNSPACED else " ").join(words)
    return Exchange(question, THOUGHT, line, (line,))
