//! The page's files, inside the binary.

use std::io::Write;
use std::sync::LazyLock;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest, Sha256};

/// A file of the page.
#[derive(Debug)]
pub(crate) struct Asset {
    pub(crate) path: &'static str,
    pub(crate) content_type: &'static str,
    pub(crate) plain: Bytes,
    pub(crate) gzip: Bytes,
    /// Digest of the content, in quotes.
    pub(crate) tag: String,
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

macro_rules! files {
    ($($path:literal $type:ident $file:literal,)*) => {
        [$(($path, $type, include_bytes!(concat!("../web/", $file)).as_slice())),*]
    };
}

static ASSETS: LazyLock<Vec<Asset>> = LazyLock::new(|| {
    files![
        "/" HTML "index.html",
        "/style.css" CSS "style.css",
        "/icon.svg" SVG "icon.svg",
        "/app.js" JS "app.js",
        "/actions.js" JS "actions.js",
        "/charts.js" JS "charts.js",
        "/cluster.js" JS "cluster.js",
        "/clusters.js" JS "clusters.js",
        "/configuration.js" JS "configuration.js",
        "/curves.js" JS "curves.js",
        "/dom.js" JS "dom.js",
        "/drawing.js" JS "drawing.js",
        "/eureka.js" JS "eureka.js",
        "/folds.js" JS "folds.js",
        "/format.js" JS "format.js",
        "/history.js" JS "history.js",
        "/live.js" JS "live.js",
        "/order.js" JS "order.js",
        "/services.js" JS "services.js",
        "/state.js" JS "state.js",
        "/statements.js" JS "statements.js",
        "/table.js" JS "table.js",
        "/verdict.js" JS "verdict.js",
    ]
    .into_iter()
    .map(|(path, content_type, bytes)| {
        let hash: String = Sha256::digest(bytes).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        Asset {
            path,
            content_type,
            plain: Bytes::from_static(bytes),
            gzip: squeezed(bytes),
            tag: format!("\"{hash}\""),
        }
    })
    .collect()
});

/// Compresses bytes. Writing into memory never fails.
fn squeezed(bytes: &[u8]) -> Bytes {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    let _ = encoder.write_all(bytes);
    encoder.finish().unwrap_or_default().into()
}

/// Returns the file at a path.
pub(crate) fn at(path: &str) -> Option<&'static Asset> {
    ASSETS.iter().find(|asset| asset.path == path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_view_is_small_and_whole() {
        let whole: usize = ASSETS.iter().map(|asset| asset.plain.len()).sum();
        let sent: usize = ASSETS.iter().map(|asset| asset.gzip.len()).sum();
        assert!(sent < 50_000 && whole < 150_000, "{sent} bytes sent of {whole}");
        // Every file that these files name exists, and none is loaded from elsewhere.
        for asset in ASSETS.iter() {
            let text = String::from_utf8_lossy(&asset.plain);
            for name in text.split(['"', '\'']).filter(|word| word.starts_with("./") || word.ends_with(".css")) {
                let path = format!("/{}", name.trim_start_matches("./").trim_start_matches('/'));
                assert!(at(&path).is_some(), "{} names {name}", asset.path);
            }
            let foreign = text.split(['"', '\'', '(']).find(|word| {
                (word.starts_with("http") || word.starts_with("//"))
                    && word.contains("://")
                    && !word.starts_with("http://www.w3.org/")
            });
            assert_eq!(foreign, None, "{}", asset.path);
        }
    }

    #[test]
    fn nothing_needs_what_the_policy_forbids() {
        let html = at("/").map(|asset| String::from_utf8_lossy(&asset.plain).into_owned()).unwrap_or_default();
        assert!(!html.contains("<style") && !html.contains(" style=") && !html.contains(" onclick="), "inline");
        assert!(!html.replace("<script type=\"module\" src=", "").contains("<script"), "inline script");
        for asset in ASSETS.iter().filter(|asset| asset.content_type == JS) {
            let text = String::from_utf8_lossy(&asset.plain);
            for forbidden in
                ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", ".style."]
            {
                assert!(!text.contains(forbidden), "{} has {forbidden}", asset.path);
            }
        }
    }
}
