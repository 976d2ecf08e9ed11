import "uplot/dist/uPlot.min.css";
import "./style.css";
import { render } from "preact";
import { App } from "./app.tsx";
import { signInByAddress } from "./session.ts";

await signInByAddress();
render(<App />, document.getElementById("page")!);
