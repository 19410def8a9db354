/** CopilotKit's cloud keeps its sockets with phoenix. This server has no such endpoint, so the package is not shipped. */

export class Socket {
  constructor() {
    throw new Error("This page talks to its server over HTTP alone.");
  }
}
