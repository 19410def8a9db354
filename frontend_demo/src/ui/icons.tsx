/** The page's icons: 24-unit outlines drawn with the current colour. */

const PATHS = {
  menu: "M4 7h16M4 12h16M4 17h10",
  plus: "M12 5v14M5 12h14",
  close: "M6 6l12 12M18 6 6 18",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M8 8h8v8H8z",
  pause: "M9 6v12M15 6v12",
  play: "M8 5.5v13l10.5-6.5z",
  sun: "M12 4V2M12 22v-2M4 12H2M22 12h-2M6 6 4.7 4.7M19.3 19.3 18 18M6 18l-1.3 1.3M19.3 4.7 18 6M12 16.5a4.5 4.5 0 1 0 0-9 4.5 4.5 0 0 0 0 9z",
  moon: "M20 14.2A8 8 0 0 1 9.8 4a8 8 0 1 0 10.2 10.2z",
  stream: "M4 6h9M4 12h16M4 18h7M17 6h3M15 18h5",
  sliders: "M4 8h9M19 8h1M4 16h2M12 16h8M16 5.500v5M9 13.500v5",
  chevron: "M9 6l6 6-6 6",
  down: "M6 9l6 6 6-6",
  copy: "M9 9h10v11H9zM5 15V4h10",
  check: "M5 12.5l4.5 4.5L19 7.5",
  retry: "M4 12a8 8 0 1 1 2.6 5.9M4 19v-5h5",
  branch: "M7 4v16M7 14c6 0 10-2 10-7M14 9l3-3 3 3",
  download: "M12 4v11M7 11l5 5 5-5M5 20h14",
  trash: "M5 7h14M10 7V4.5h4V7M7 7l1 13h8l1-13M10.5 11v5M13.5 11v5",
  pencil: "M4 20l1-4.5L16.5 4 20 7.5 8.5 19z",
  spark: "M12 3l1.9 5.6L19.5 10.5l-5.6 1.9L12 18l-1.9-5.6L4.5 10.5l5.6-1.9zM19 16v4M17 18h4",
  tool: "M14.5 6.5a4 4 0 0 1 5-.8l-3 3 .8 2.2 2.2.8 3-3a4 4 0 0 1-5.4 4.9L9.5 21.2a2 2 0 0 1-2.8-2.8l7.6-7.6a4 4 0 0 1 .2-4.3z",
  cloud: "M7 18a4 4 0 0 1-.6-7.9 6 6 0 0 1 11.3 1.5A3.3 3.3 0 0 1 17.5 18z",
  calculator: "M7 3h10a1 1 0 0 1 1 1v16a1 1 0 0 1-1 1H7a1 1 0 0 1-1-1V4a1 1 0 0 1 1-1zM9 7h6M9 12h.01M12 12h.01M15 12h.01M9 16h.01M12 16h.01M15 16h.01",
  list: "M9 6h11M9 12h11M9 18h11M4.5 6h.01M4.5 12h.01M4.5 18h.01",
  brush: "M14.5 9.5 20 4M4 20c0-3 1-5 3.5-5S12 16.5 11 18.500 7 20.500 4 20zM9.500 14l3-4 2.500 2.500-3.500 3",
  search: "M11 18a7 7 0 1 0 0-14 7 7 0 0 0 0 14zM16 16l4.500 4.500",
  mail: "M4 6h16v12H4zM4 7l8 6 8-6",
  document: "M7 3h7l4 4v14H7zM14 3v4h4M10 12h5M10 16h5",
  clip: "M19 11.5l-7.3 7.3a4.6 4.6 0 0 1-6.500-6.500l7.800-7.800a3.100 3.100 0 0 1 4.400 4.400l-7.700 7.700a1.500 1.500 0 0 1-2.200-2.200l6.800-6.800",
  question: "M9.200 9.200a2.900 2.900 0 1 1 4.300 2.600c-1 .6-1.500 1.200-1.500 2.400M12 17.500h.01M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18z",
  chip: "M8 8h8v8H8zM5 5h14v14H5zM9 2v3M15 2v3M9 19v3M15 19v3M2 9h3M2 15h3M19 9h3M19 15h3",
  alert: "M12 8v5M12 16.500h.01M10.300 4.300 2.900 17.500A2 2 0 0 0 4.600 20.500h14.800a2 2 0 0 0 1.700-3L13.700 4.300a2 2 0 0 0-3.400 0z",
  thumbUp: "M7 11v9H4v-9zM7 11l4-7c1.700 0 2.500 1 2.200 2.700L12.500 10H19a1.800 1.800 0 0 1 1.800 2.200l-1.400 6.300A2 2 0 0 1 17.400 20H7",
  thumbDown: "M17 13V4h3v9zM17 13l-4 7c-1.700 0-2.500-1-2.200-2.700l.7-3.300H5a1.800 1.800 0 0 1-1.800-2.200l1.400-6.300A2 2 0 0 1 6.600 4H17",
  leaf: "M5 19C5 9 11 5 20 4c0 10-4 15-11 15-1.500 0-3-.5-4-1.500M5 20c2-5 5-8 9-10",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name, className = "" }: { name: IconName; className?: string }) {
  const filled = name === "stop" || name === "play";
  return (
    <svg className={`icon ${className}`} viewBox="0 0 24 24" aria-hidden="true" fill={filled ? "currentColor" : "none"}
      stroke="currentColor" strokeWidth={filled ? 1 : 1.8} strokeLinecap="round" strokeLinejoin="round">
      <path d={PATHS[name]} />
    </svg>
  );
}
