/** The menu that saves a chart: as SVG or PNG as it is drawn, and its data as CSV. */
import { download } from "../download.ts";
import type { Size } from "../layout/scales.ts";
import { palette, type Palette } from "../theme.ts";
import { Menu } from "./menu.tsx";
import { SvgContext } from "./svg_context.ts";

type Cell = string | number | boolean | null | undefined;

/** The content of the files: their name, and the data as rows below their names. */
export interface ChartData {
  name: string;
  rows: () => Cell[][];
}

interface Props {
  data: ChartData;
  size: () => Size;
  draw: (context: CanvasRenderingContext2D, size: Size, colours: Palette) => void;
}

/** Pixels of a PNG for one of the page. */
const SCALE = 2;

export function SaveChart({ data, size, draw }: Props) {
  const svg = () => {
    const context = new SvgContext(size(), palette.value.paper);
    draw(context.asCanvas, size(), palette.value);
    download(`${data.name}.svg`, context.text, "image/svg+xml");
  };
  const png = () => {
    const canvas = document.createElement("canvas");
    const { width, height } = size();
    [canvas.width, canvas.height] = [width * SCALE, height * SCALE];
    const context = canvas.getContext("2d")!;
    context.scale(SCALE, SCALE);
    context.fillStyle = palette.value.paper;
    context.fillRect(0, 0, width, height);
    context.font = "12px system-ui, sans-serif";
    draw(context, size(), palette.value);
    canvas.toBlob((blob) => blob && download(`${data.name}.png`, blob, "image/png"));
  };
  return (
    <Menu title="Save" class="save">
      <li>
        <button onClick={svg}>Picture, SVG</button>
      </li>
      <li>
        <button onClick={png}>Picture, PNG</button>
      </li>
      <li>
        <button onClick={() => download(`${data.name}.csv`, csvText(data.rows()), "text/csv;charset=utf-8")}>Data, CSV</button>
      </li>
    </Menu>
  );
}

/** CSV by RFC 4180. */
function csvText(rows: Cell[][]): string {
  const quoted = (value: Cell) => {
    const text = value === null || value === undefined ? "" : String(value);
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return rows.map((row) => `${row.map(quoted).join(",")}\r\n`).join("");
}
