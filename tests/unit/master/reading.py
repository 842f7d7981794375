"""Reads a page as a browser would, and complains where a browser would guess."""

from html.parser import HTMLParser

VOID = ("meta",)


class Reader(HTMLParser):
    """All elements as (tag, attributes, text inside), in the order in which they end."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.elements = []
        self._open = []
        self.feed(page)
        self.close()
        assert not self._open, f"never closed: {[tag for tag, _, _ in self._open]}"

    def handle_starttag(self, tag, attributes):
        names = [name for name, _ in attributes]
        assert len(names) == len(set(names)), f"<{tag}> has an attribute twice: {names}"
        if tag not in VOID:
            self._open.append((tag, dict(attributes), []))
        else:
            self.elements.append((tag, dict(attributes), ""))

    def handle_endtag(self, tag):
        assert self._open, f"</{tag}> closes nothing"
        opened, attributes, texts = self._open.pop()
        assert opened == tag, f"</{tag}> closes <{opened}>"
        self.elements.append((tag, attributes, "".join(texts)))

    def handle_data(self, data):
        for _, _, texts in self._open:
            texts.append(data)

    def all(self, tag, class_=None):
        """Attributes and text of every such element."""
        return [
            (attributes, text)
            for found, attributes, text in self.elements
            if found == tag and (class_ is None or class_ in (attributes.get("class") or "").split())
        ]

    def texts(self, tag, class_=None):
        return [text for _, text in self.all(tag, class_)]
