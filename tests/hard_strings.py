"""Texts that tokenizers easily encode or decode in another way than their model learned: white space, control tokens that
are spelled out, characters with several forms, emoji of several characters, numbers, contractions, code, long runs."""

STRINGS = (
    'Hello, world!', 'hello', ' hello', '  hello', 'hello ', 'hello  ', '', ' ', '  ', '   ', '\n', '\n\n',
    '\n\n\n\n', '\t', '\t\t x', ' \n \t ', 'a\r\nb\r\n', '\r', 'def f(x):\n    return x  # two\n\n\n        deep',
    'if (a) {\n\tb();\n\t\tc();\n}\n', 'a  b   c    d     e      f', 'x = [1,  2,   3]',
    '<table><tr><td>1</td></tr></table>', '<b>bold</b> and <i>it</i> <code>x</code>',
    "<div class='a'>\n  <p>text</p>\n</div>", '</s>', '<s>', '<unk>', '<pad>', 'a<s>b</s>c',
    '<|im_start|>user\nhi<|im_end|>', '<|endoftext|>', '<bos>x<eos>', '<start_of_turn>user\n', '<think>\n\n</think>',
    '<tool_call>{}</tool_call>', '[INST] x [/INST]', '<|begin_of_text|>a', '<｜User｜>hi<｜Assistant｜>',
    '<|start|>assistant<|channel|>final<|message|>x<|end|>', 'café', 'cafe\u0301', '\u2126 \u03a9', '한국',
    '\u1112\u1161\u11ab\u1100\u116e\u11a8', '\u212b \xc5 A\u030a', 'ﬁ ﬂ ½ ² ™', 'Ǆ ǅ ß ẞ İ ı', 'ÅÄÖ åäö',
    'naïve façade', '東京は夜の七時', '你好，世界！', '한국어 문장입니다.', 'Привет, мир!', 'مرحبا بالعالم', 'שלום עולם', 'नमस्ते दुनिया',
    'สวัสดีชาวโลก', 'Γειά σου Κόσμε', 'Tiếng Việt có dấu', '🙂',
    '\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466', '🇩🇪🇯🇵', '👍🏽', 'a🙂b🙂c',
    '\U0001f937\u200d\u2640\ufe0f ok', '\U0001f9d1\u200d\U0001f680', '\u200b\u200c\u200d\ufeff', '\xa0\u2003\u3000x',
    '\u2028\u2029', '1234567890', '3.14159e-10', '1,000,000.00', '2026-11-25T10:31:26Z', '007 0x7f 0b11',
    "I'm you're we'll they've he'd it's DON'T CAN'T", 'O\'Neil\'s \'quoted\' "double"', '...!!!???', 'a.b.c/d\\e|f',
    'https://example.org/a?b=c&d=%20#e', '{"a": [1, 2, {"b": "c d"}], "e": null}', 'SELECT * FROM t WHERE x >= 10;',
    'a_b__c___d', 'camelCaseHTTPServer2XML', 'ALLCAPS lower Mixed', '-----=====+++++', '\x00\x01\x1f\x7f',
    '\x85\x0b\x0c', '▁', 'a▁b ▁▁ c', 'Ġ Ċ ĉ Âł', '<0x0A> <0xE2>', '𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟙𝟚𝟛',
    'z\u0351\u036b\u0343\u036a\u0302\u036b\u033d\u034f\u0334\u0319\u0324', 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa',
    "ab" * 40, " " * 37 + "x", "\n" * 40, "word " * 30, "The quick brown fox jumps over the lazy dog. " * 3,
)  # fmt: skip
