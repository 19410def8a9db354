/** TanStack's debouncers report to its developer tools. This page has none, so the client (7 kB) is not shipped. */

export class EventClient {
  on(): () => void {
    return () => undefined;
  }
  emit(): void {}
}
