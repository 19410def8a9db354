/**
 * CopilotKit's own provider brings its whole widget library; the hooks need only the context, which is provided here
 * in the same way: one core, the set of tools that are executing, errors to a callback.
 */

import { CopilotKitContext } from "@copilotkit/react-core/v2/context";
import type { CopilotKitCoreReact } from "@copilotkit/react-core/v2/headless";
import { useEffect, useMemo, useState, type ReactNode } from "react";

export interface KitError {
  error: Error;
  code: string;
}

interface Props {
  core: CopilotKitCoreReact;
  onError: (error: KitError) => void;
  children: ReactNode;
}

export function Kit({ core, onError, children }: Props) {
  const [executing, setExecuting] = useState<ReadonlySet<string>>(() => new Set());

  useEffect(() => {
    const subscription = core.subscribe({
      onToolExecutionStart: ({ toolCallId }) => setExecuting((now) => new Set(now).add(toolCallId)),
      onToolExecutionEnd: ({ toolCallId }) => setExecuting((now) => without(now, toolCallId)),
    });
    return () => subscription.unsubscribe();
  }, [core]);

  useEffect(() => {
    const subscription = core.subscribe({ onError: (event) => onError({ error: event.error, code: event.code }) });
    return () => subscription.unsubscribe();
  }, [core, onError]);

  useEffect(() => core.connect(), [core]);

  const value = useMemo(() => ({ copilotkit: core, executingToolCallIds: executing }), [core, executing]);
  return <CopilotKitContext.Provider value={value}>{children}</CopilotKitContext.Provider>;
}

function without(set: ReadonlySet<string>, item: string): ReadonlySet<string> {
  const next = new Set(set);
  next.delete(item);
  return next;
}
