import "uplot/dist/uPlot.min.css";
import "./style.css";
import { render } from "preact";
import { App } from "./app.tsx";
import { listenForKeys } from "./keyboard.ts";
import { signInByAddress } from "./session.ts";

await signInByAddress();
listenForKeys();
render(<App />, document.getElementById("page")!);
