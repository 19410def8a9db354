/** First of all imports: zod compiles its parsers with `new Function` unless told not to, which our CSP forbids. */

import { config } from "zod";

config({ jitless: true });
