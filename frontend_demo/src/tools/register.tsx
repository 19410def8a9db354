/** The page's own tools, told to the model with every run, and how each tool call looks. */

import { useFrontendTool, useHumanInTheLoop, useRenderTool } from "@copilotkit/react-core/v2/headless";
import type { ComponentProps } from "react";
import { isBackground } from "../ui/theme";
import { late } from "../panel/late";
import { parameters } from "./parameters";
import type { ToolProps } from "./status";

const Background = late(() => import("./cards").then((cards) => cards.Background));
const DocumentCard = late(() => import("./cards").then((cards) => cards.DocumentCard));
const Haiku = late(() => import("./cards").then((cards) => cards.Haiku));
const Plan = late(() => import("./cards").then((cards) => cards.Plan));
const ToolCard = late(() => import("./cards").then((cards) => cards.ToolCard));
const Weather = late(() => import("./cards").then((cards) => cards.Weather));

const anyArguments = parameters<Record<string, unknown>>({ type: "object" });

/** Names of the tools that every agent may call on this page. */
export const PAGE_TOOLS = [{ name: "generate_task_steps" }, { name: "change_background" }];

export function usePageTools({ paint, openDocument }: { paint: (background: string) => void; openDocument: () => void }): void {
  useFrontendTool({
    name: "change_background",
    description: "Change the background of the page. Takes any CSS background: a colour or a gradient.",
    parameters: parameters<{ background: string }>({
      type: "object",
      properties: { background: { type: "string", description: "A CSS colour or gradient" } },
      required: ["background"],
    }),
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
    parameters: parameters<{ steps: { description: string; status: string }[] }>({
      type: "object",
      properties: {
        steps: {
          type: "array",
          description: "The steps, in order",
          items: {
            type: "object",
            properties: {
              description: { type: "string", description: "The step in a few words" },
              status: { type: "string", enum: ["enabled", "disabled", "executing"], description: "Always enabled" },
            },
            required: ["description", "status"],
          },
        },
      },
      required: ["steps"],
    }),
    render: (props) => <Plan {...(props as unknown as ComponentProps<typeof Plan>)} />,
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
