/** A drawing context that writes SVG, to save drawings of a canvas as vector pictures. */

interface Style {
  fillStyle: string;
  strokeStyle: string;
  globalAlpha: number;
  lineWidth: number;
  lineCap: string;
  font: string;
  textAlign: string;
  textBaseline: string;
  dash: number[];
  /** The clip in force, as the id of its element; "" for none. */
  clipId: string;
}

const PLAIN: Style = { fillStyle: "#000", strokeStyle: "#000", globalAlpha: 1, lineWidth: 1, lineCap: "butt", font: "12px system-ui, sans-serif", textAlign: "start", textBaseline: "alphabetic", dash: [], clipId: "" };
const ANCHORS: Record<string, string> = { center: "middle", right: "end", end: "end" };
const BASELINES: Record<string, string> = { middle: "central", top: "hanging" };
/** The width of a letter, in parts of the font's size, where no canvas can measure it. */
const LETTER = 0.56;

export class SvgContext {
  private style: Style = { ...PLAIN };
  private saved: Style[] = [];
  private path = "";
  private parts: string[] = [];
  private clips = 0;
  private readonly size: { width: number; height: number };
  private readonly paper: string;

  constructor(size: { width: number; height: number }, paper: string) {
    this.size = size;
    this.paper = paper;
    for (const name of ["fillStyle", "strokeStyle", "globalAlpha", "lineWidth", "lineCap", "font", "textAlign", "textBaseline"] as const) {
      Object.defineProperty(this, name, { get: () => this.style[name], set: (value: never) => (this.style[name] = value) });
    }
  }

  /** For functions that draw on a canvas. */
  get asCanvas(): CanvasRenderingContext2D {
    return this as unknown as CanvasRenderingContext2D;
  }

  get text(): string {
    const { width, height } = this.size;
    return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}"><rect width="100%" height="100%" fill="${this.paper}"/>${this.parts.join("")}</svg>\n`;
  }

  save(): void {
    this.saved.push({ ...this.style });
  }

  restore(): void {
    this.style = this.saved.pop() ?? { ...PLAIN };
  }

  setLineDash(dash: number[]): void {
    this.style.dash = dash;
  }

  clearRect(): void {}

  beginPath(): void {
    this.path = "";
  }

  moveTo(x: number, y: number): void {
    this.path += `M${short(x)} ${short(y)}`;
  }

  lineTo(x: number, y: number): void {
    this.path += `${this.path ? "L" : "M"}${short(x)} ${short(y)}`;
  }

  rect(x: number, y: number, width: number, height: number): void {
    this.path += `M${short(x)} ${short(y)}h${short(width)}v${short(height)}h${short(-width)}z`;
  }

  /** Circles alone are drawn. */
  arc(x: number, y: number, radius: number): void {
    const across = short(2 * radius);
    this.path += `M${short(x - radius)} ${short(y)}a${short(radius)} ${short(radius)} 0 1 0 ${across} 0a${short(radius)} ${short(radius)} 0 1 0 -${across} 0`;
  }

  clip(): void {
    this.clips += 1;
    const id = `clip${this.clips}`;
    this.parts.push(`<clipPath id="${id}"><path d="${this.path}"/></clipPath>`);
    this.style.clipId = id;
  }

  stroke(): void {
    this.put(`<path d="${this.path}" fill="none" ${this.strokeAttributes()}`);
  }

  fill(): void {
    this.put(`<path d="${this.path}" fill="${this.style.fillStyle}"`);
  }

  fillRect(x: number, y: number, width: number, height: number): void {
    this.put(`<rect ${box(x, y, width, height)} fill="${this.style.fillStyle}"`);
  }

  strokeRect(x: number, y: number, width: number, height: number): void {
    this.put(`<rect ${box(x, y, width, height)} fill="none" ${this.strokeAttributes()}`);
  }

  fillText(text: string, x: number, y: number): void {
    this.write(text, x, y, `fill="${this.style.fillStyle}"`);
  }

  strokeText(text: string, x: number, y: number): void {
    this.write(text, x, y, `fill="none" stroke-linejoin="round" ${this.strokeAttributes()}`);
  }

  measureText(text: string): { width: number } {
    const canvas = globalThis.document?.createElement?.("canvas").getContext("2d");
    if (!canvas) return { width: text.length * LETTER * (Number.parseFloat(this.style.font.replace(/^[^\d]*\d+ (?=\d)/, "")) || 12) };
    canvas.font = this.style.font;
    return canvas.measureText(text);
  }

  private strokeAttributes(): string {
    const { strokeStyle, lineWidth, lineCap, dash } = this.style;
    return `stroke="${strokeStyle}" stroke-width="${short(lineWidth)}" stroke-linecap="${lineCap}"${dash.length ? ` stroke-dasharray="${dash.join(" ")}"` : ""}`;
  }

  private write(text: string, x: number, y: number, look: string): void {
    if (!text) return;
    const { font, textAlign, textBaseline } = this.style;
    const place = `x="${short(x)}" y="${short(y)}" text-anchor="${ANCHORS[textAlign] ?? "start"}" dominant-baseline="${BASELINES[textBaseline] ?? "auto"}"`;
    this.put(`<text ${place} style="font:${font.replaceAll('"', "'")}" ${look}`, escapeXml(text), "text");
  }

  private put(start: string, content = "", name = ""): void {
    const { globalAlpha, clipId } = this.style;
    const more = `${globalAlpha < 1 ? ` opacity="${short(globalAlpha)}"` : ""}${clipId ? ` clip-path="url(#${clipId})"` : ""}`;
    this.parts.push(name ? `${start}${more}>${content}</${name}>` : `${start}${more}/>`);
  }
}

function short(value: number): number {
  return Math.round(value * 100) / 100;
}

function box(x: number, y: number, width: number, height: number): string {
  return `x="${short(x)}" y="${short(y)}" width="${short(Math.max(0, width))}" height="${short(Math.max(0, height))}"`;
}

function escapeXml(text: string): string {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}
