/** Parts of the page that are fetched when they are first looked at, so that the conversation need not wait for them. */

import { lazy, Suspense, type ComponentType } from "react";

/** A part that is fetched when it is first shown; where that fails it says so, in place of the whole page breaking. */
export function late<P extends object>(fetch: () => Promise<ComponentType<P>>): ComponentType<P> {
  const Fetched = lazy((): Promise<{ default: ComponentType<P> }> => fetch().then((part) => ({ default: part }), () => ({ default: NotLoaded })));
  return function Late(props: P) {
    return <Suspense fallback={null}><Fetched {...props} /></Suspense>;
  };
}

function NotLoaded() {
  return <p className="remains" role="status">This part of the page could not be loaded. Please reload the page.</p>;
}
