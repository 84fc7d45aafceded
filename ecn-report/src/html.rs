//! Self-contained HTML pages: no scripts, and no other files.

use std::fmt::Write as _;

const STYLE: &str = "body{font:15px/1.5 sans-serif;color:#222;max-width:980px;margin:2em auto;padding:0 1em}\
h1{font-size:1.5em}h2{font-size:1.2em;margin-top:2em}.wide{overflow-x:auto}\
table{border-collapse:collapse;margin:1em 0;white-space:nowrap}\
th,td{padding:.2em .6em;text-align:right;border-bottom:1px solid #ddd}\
th{border-bottom-color:#888;font-size:.85em}table{font-size:.93em}th:first-child,td:first-child{text-align:left}\
table.texts td{text-align:left}figure{margin:1.5em 0}svg{max-width:100%;height:auto}\
figcaption{color:#666}";

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// A page, written from top to bottom. All texts are plain text, which is escaped.
#[derive(Debug)]
pub struct Page(String);

impl Page {
    /// A page with a title, which is also its heading.
    pub fn new(title: &str) -> Self {
        let title = escape(title);
        Self(format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width\">\n\
             <title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
        ))
    }

    /// The heading of a section.
    pub fn heading(&mut self, text: &str) {
        let _ = writeln!(self.0, "<h2>{}</h2>", escape(text));
    }

    /// A paragraph.
    pub fn paragraph(&mut self, text: &str) {
        let _ = writeln!(self.0, "<p>{}</p>", escape(text));
    }

    /// A table of numbers, with names in its first column.
    pub fn table<R: AsRef<[String]>>(
        &mut self,
        header: &[&str],
        rows: impl IntoIterator<Item = R>,
    ) {
        self.write_table("numbers", header, rows);
    }

    /// A table of texts.
    pub fn text_table<R: AsRef<[String]>>(
        &mut self,
        header: &[&str],
        rows: impl IntoIterator<Item = R>,
    ) {
        self.write_table("texts", header, rows);
    }

    fn write_table<R: AsRef<[String]>>(
        &mut self,
        class: &str,
        header: &[&str],
        rows: impl IntoIterator<Item = R>,
    ) {
        let html = &mut self.0;
        let _ = write!(
            html,
            "<div class=\"wide\"><table class=\"{class}\">\n<thead><tr>"
        );
        for name in header {
            let _ = write!(html, "<th scope=\"col\">{}</th>", escape(name));
        }
        html.push_str("</tr></thead>\n<tbody>\n");
        for row in rows {
            html.push_str("<tr>");
            for cell in row.as_ref() {
                let _ = write!(html, "<td>{}</td>", escape(cell));
            }
            html.push_str("</tr>\n");
        }
        html.push_str("</tbody></table></div>\n");
    }

    /// A figure (SVG), and its caption.
    pub fn figure(&mut self, svg: &str, caption: &str) {
        let caption = escape(caption);
        let _ = writeln!(
            self.0,
            "<figure>\n{svg}<figcaption>{caption}</figcaption>\n</figure>"
        );
    }

    /// The text of the HTML file.
    pub fn finish(self) -> String {
        self.0 + "</body>\n</html>\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_escaped() {
        let mut page = Page::new("a < b");
        page.heading("b > a");
        page.paragraph("a & b");
        page.table(&["<"], [["&".to_owned()]]);
        page.figure("<svg/>", "<svg>");
        let html = page.finish();
        for text in [
            "<title>a &lt; b</title>",
            "<h2>b &gt; a</h2>",
            "<p>a &amp; b</p>",
            "<th scope=\"col\">&lt;</th>",
            "<td>&amp;</td>",
            "<svg/><figcaption>&lt;svg&gt;</figcaption>",
        ] {
            assert!(html.contains(text), "{text}: {html}");
        }
        assert!(html.ends_with("</html>\n"), "{html}");
    }
}
