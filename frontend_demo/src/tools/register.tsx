/** The page's own tools, told to the model with every run, and how each tool call looks. */

import { useFrontendTool, useHumanInTheLoop, useRenderTool } from "@copilotkit/react-core/v2/headless";
import { z } from "zod/v3";
import { isBackground } from "../ui/theme";
import { Background } from "./Background";
import { DocumentCard } from "./DocumentCard";
import { Haiku } from "./Haiku";
import { Plan } from "./Plan";
import type { ToolProps } from "./status";
import { ToolCard } from "./ToolCard";
import { Weather } from "./Weather";

const anyArguments = z.record(z.string(), z.unknown());

/** Names of the tools that every agent may call on this page. */
export const PAGE_TOOLS = [{ name: "generate_task_steps" }, { name: "change_background" }];

export function usePageTools({ paint, openDocument }: { paint: (background: string) => void; openDocument: () => void }): void {
  useFrontendTool({
    name: "change_background",
    description: "Change the background of the page. Takes any CSS background: a colour or a gradient.",
    parameters: z.object({ background: z.string().describe("A CSS colour or gradient") }),
    handler: async ({ background }) => {
      if (!isBackground(background)) return { error: "That is not a CSS background." };
      paint(background);
      return { status: "success" };
    },
    render: (props) => <Background {...(props as ToolProps)} />,
  }, [paint]);

  useHumanInTheLoop({
    name: "generate_task_steps",
    description: "Propose a plan as steps. The person edits and confirms them.",
    parameters: z.object({
      steps: z.array(z.object({
        description: z.string().describe("The step in a few words"),
        status: z.enum(["enabled", "disabled", "executing"]).describe("Always enabled"),
      })).describe("The steps, in order"),
    }),
    render: (props) => <Plan {...(props as unknown as Parameters<typeof Plan>[0])} />,
  }, []);

  useRenderTool({ name: "write_document", parameters: anyArguments, render: (props) => <DocumentCard {...shaped(props)} onOpen={openDocument} /> }, [openDocument]);
  useRenderTool({ name: "get_weather", parameters: anyArguments, render: (props) => <Weather {...shaped(props)} /> }, []);
  useRenderTool({ name: "generate_haiku", parameters: anyArguments, render: (props) => <Haiku {...shaped(props)} /> }, []);
  useRenderTool({ name: "*", render: (props) => <ToolCard {...shaped(props)} /> }, []);
}

/** CopilotKit gives renderers of tools `parameters`, and those of frontend tools `args`. */
function shaped(props: { name: string; toolCallId: string; status: string; parameters?: unknown; args?: unknown; result?: unknown }): ToolProps {
  const args = (props.parameters ?? props.args ?? {}) as Record<string, unknown>;
  return { name: props.name, toolCallId: props.toolCallId, status: props.status as ToolProps["status"], args, result: props.result as string | undefined };
}
