//! ListVolumes page by page.

use std::collections::BTreeSet;

use csi_proto::v1::controller_client::ControllerClient;
use csi_proto::v1::{ListVolumesRequest, ListVolumesResponse};
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::server::{Server, mk_create, mk_delete, mk_publish};

async fn page(
    client: &mut ControllerClient<Channel>,
    max_entries: i32,
    token: &str,
) -> Result<ListVolumesResponse, Status> {
    let request = ListVolumesRequest {
        max_entries,
        starting_token: token.to_owned(),
    };
    client
        .list_volumes(request)
        .await
        .map(tonic::Response::into_inner)
}

fn ids(page: &ListVolumesResponse) -> Vec<String> {
    page.entries
        .iter()
        .map(|entry| entry.volume.as_ref().unwrap().volume_id.clone())
        .collect()
}

async fn walk(client: &mut ControllerClient<Channel>, max_entries: i32) -> Vec<String> {
    let (mut all, mut token) = (Vec::new(), String::new());
    loop {
        let page = page(client, max_entries, &token).await.unwrap();
        all.extend(ids(&page));
        if page.next_token.is_empty() {
            return all;
        }
        token = page.next_token;
    }
}

#[tokio::test]
async fn pages_of_any_size_are_complete_and_ordered() {
    let server = Server::start_with(|_, settings| settings.initial_volumes = 23).await;
    let mut client = server.controller().await;
    let all = walk(&mut client, 0).await;
    assert_eq!(all.len(), 23);
    assert!(all.is_sorted());
    for size in 1..=24 {
        assert_eq!(walk(&mut client, size).await, all, "pages of {size}");
    }
    let exact = page(&mut client, 23, "").await.unwrap();
    assert_eq!(
        exact.next_token, "",
        "a page that ends with the last volume is the last one"
    );
}

#[tokio::test]
async fn nodes_are_listed_with_their_volumes() {
    let server = Server::start().await;
    let mut client = server.controller().await;
    client
        .controller_publish_volume(mk_publish("vol-3", "node-1"))
        .await
        .unwrap();
    let page = page(&mut client, 0, "").await.unwrap();
    let nodes: Vec<_> = page
        .entries
        .into_iter()
        .map(|entry| entry.status.unwrap().published_node_ids.join(" "))
        .collect();
    assert_eq!(nodes, ["", "", "", "node-1", ""]);
}

#[tokio::test]
async fn driver_limits_the_page_size() {
    let server = Server::start_with(|_, settings| {
        settings.initial_volumes = 10;
        settings.array.page_limit = Some(4);
    })
    .await;
    let mut client = server.controller().await;
    for asked in [0, 5, 100] {
        assert_eq!(
            page(&mut client, asked, "").await.unwrap().entries.len(),
            4,
            "{asked} requested"
        );
        assert_eq!(walk(&mut client, asked).await.len(), 10, "{asked} asked");
    }
    assert_eq!(page(&mut client, 3, "").await.unwrap().entries.len(), 3);
}

#[tokio::test]
async fn volumes_are_listed_once_while_others_are_created_and_deleted() {
    let server = Server::start_with(|_, _| {}).await;
    let mut client = server.controller().await;
    let mut create = async |name: String| {
        client
            .create_volume(mk_create(&name))
            .await
            .unwrap()
            .into_inner()
            .volume
            .unwrap()
            .volume_id
    };
    let mut staying = BTreeSet::new();
    let mut leaving = Vec::new();
    for number in 0..30 {
        staying.insert(create(format!("staying-{number}")).await);
        leaving.push(create(format!("leaving-{number}")).await);
    }

    let mut client = server.controller().await;
    let mut seen = Vec::new();
    let mut token = String::new();
    loop {
        let page = page(&mut client, 3, &token).await.unwrap();
        seen.extend(ids(&page));
        if page.next_token.is_empty() {
            break;
        }
        token = page.next_token;
        // Also deletes the volume that the token refers to, if it is one of the removed ones.
        if let Some(gone) = leaving.pop() {
            client.delete_volume(mk_delete(&gone)).await.unwrap();
        }
        if let Some(last) = ids_that(&seen, &leaving).last() {
            client.delete_volume(mk_delete(last)).await.unwrap();
        }
        create(format!("coming-{}", seen.len())).await;
    }
    assert!(seen.is_sorted());
    let distinct: BTreeSet<_> = seen.iter().cloned().collect();
    assert_eq!(distinct.len(), seen.len(), "no volume twice");
    assert!(staying.is_subset(&distinct), "no remaining volume was missed");
}

fn ids_that(seen: &[String], leaving: &[String]) -> Vec<String> {
    seen.iter().filter(|id| leaving.contains(id)).cloned().collect()
}

#[tokio::test]
async fn foreign_tokens_are_refused() {
    let server = Server::start().await;
    let mut client = server.controller().await;
    let good = page(&mut client, 2, "").await.unwrap().next_token;
    let other = Server::start().await;
    let foreign = page(&mut other.controller().await, 2, "")
        .await
        .unwrap()
        .next_token;
    assert_ne!(good, foreign);
    let altered = good.replace("vol-1", "vol-3");
    assert_ne!(good, altered);
    for token in [
        "invalid-token",
        "0",
        "1",
        "vol-1",
        ".",
        ".vol-1",
        &foreign,
        &altered,
        &good[1..],
    ] {
        let status = page(&mut client, 2, token).await.unwrap_err();
        assert_eq!(status.code(), Code::Aborted, "{token}: {status}");
        assert!(status.message().contains("starting_token"), "{status}");
    }
    assert_eq!(
        ids(&page(&mut client, 2, &good).await.unwrap()),
        ["vol-2", "vol-3"]
    );
}
