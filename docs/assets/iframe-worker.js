/* A page that was opened from disk may start no worker, and the search is one. Here its script runs in a frame of the
   page instead, which the same messages reach. Pages that a server gives keep the browser's own workers. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    #frame = document.createElement("iframe");
    #ready;

    constructor(script) {
      super();
      this.#frame.hidden = true;
      document.body.append(this.#frame);
      const inside = this.#frame.contentWindow;
      inside.postMessage = (data) => this.#tell(data);
      inside.importScripts = (...urls) =>
        urls.reduce((earlier, url) => earlier.then(() => this.#load(url)), Promise.resolve());
      this.#ready = this.#load(script);
    }

    postMessage(data) {
      this.#ready.then(() => this.#frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.#frame.remove();
    }

    #load(url) {
      return new Promise((loaded, failed) => {
        const element = this.#frame.contentDocument.createElement("script");
        element.src = new URL(url, document.baseURI).href;
        element.onload = loaded;
        element.onerror = () => failed(new Error(`${url} cannot be loaded`));
        this.#frame.contentDocument.body.append(element);
      });
    }

    /* As a worker's: later, and to `onmessage` as well as to listeners. */
    #tell(data) {
      setTimeout(() => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        this.onmessage?.(event);
      });
    }
  };
}
