// Draws Mermaid blocks as diagrams and selects light or dark pictures, as the book's theme is.
// Without mermaid.min.js the blocks stay as code.
(() => {
    const root = document.documentElement;
    const dark = () => ["coal", "navy", "ayu"].some((name) => root.classList.contains(name));
    const sources = [...document.querySelectorAll("picture source")];
    const blocks = [...document.querySelectorAll("code.language-mermaid")].map((code) => ({
        text: code.textContent, block: code.closest("pre"), figure: document.createElement("div"),
    }));
    let shown;
    const draw = async () => {
        if (shown === dark()) return;
        shown = dark();
        for (const source of sources) source.media = shown ? "all" : "not all";
        if (!window.mermaid) return;
        const theme = shown ? "dark" : "default";
        mermaid.initialize({ startOnLoad: false, theme, fontFamily: "sans-serif" });
        for (const [number, { text, block, figure }] of blocks.entries()) {
            figure.className = "diagram";
            figure.innerHTML = (await mermaid.render(`diagram-${number}`, text)).svg;
            block.replaceWith(figure);
        }
    };
    new MutationObserver(draw).observe(root, { attributeFilter: ["class"] });
    draw();
    if (blocks.length === 0) return;
    const script = document.createElement("script");
    script.src = `${path_to_root}mermaid.min.js`;
    script.onload = () => {
        shown = undefined;
        draw();
    };
    document.head.append(script);
})();
