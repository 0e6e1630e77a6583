//! The dashboard's files over HTTP.

use super::administered;

#[tokio::test]
async fn dashboard_and_its_assets_are_served() {
    let (_server, client) = administered().await;
    let page = client.text("/").await.unwrap();
    let mut unread = vec![("/".to_owned(), page)];
    let mut read = Vec::new();
    while let Some((path, text)) = unread.pop() {
        // Only XML namespaces, which are not fetched, may look like URLs.
        let text_alone = text.replace("http://www.w3.org/2000/svg", "");
        for foreign in [
            "http://",
            "https://",
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "eval(",
            "document.write",
        ] {
            assert!(!text_alone.contains(foreign), "{path}: {foreign}");
        }
        let quoted = text
            .split('"')
            .filter(|part| part.starts_with("/dashboard/") || part.starts_with("./"));
        for part in quoted {
            let part = part.replace("./", "/dashboard/");
            if !read.contains(&part) {
                let asset = client
                    .text(&part)
                    .await
                    .unwrap_or_else(|error| panic!("{path}: {part}: {error}"));
                read.push(part.clone());
                unread.push((part, asset));
            }
        }
    }
    assert!(read.len() > 8, "{read:?}");
}
