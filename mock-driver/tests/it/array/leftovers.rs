//! Bytes that an array left which lived as long as its process.

use std::fs;
use std::path::Path;

use csi_mock_driver::driver::Settings;
use csi_mock_driver::media::Medium;
use csi_proto::v1;

use crate::server::{Server, mk_create};

fn same_array(directory: &Path, settings: &mut Settings) {
    settings.media_dir = Some(directory.join("media"));
    settings.seed = Some(7);
    settings.premade = 1;
}

async fn create(server: &Server) -> Medium {
    let made = server.controller().await.create_volume(mk_create("a")).await;
    Medium::Volume(made.unwrap().into_inner().volume.unwrap().volume_id)
}

#[tokio::test]
async fn a_new_volume_is_empty_although_an_array_before_had_one_of_that_id() {
    let server = Server::start_with(same_array).await;
    let (first, stays) = (create(&server).await, Medium::Volume("vol-0".to_owned()));
    for medium in [&first, &stays] {
        let disk = server.driver().media().ensure(medium, 4096).await.unwrap();
        fs::write(disk, "of the array before").unwrap();
    }
    let directory = server.stop().await;

    let server = Server::start_in(directory, same_array).await;
    let media = server.driver().media();
    // Nobody is answered before that is done.
    server.identity().await.probe(v1::ProbeRequest {}).await.unwrap();
    assert!(!media.exists(&first).unwrap(), "swept away at the start");
    assert!(media.exists(&stays).unwrap(), "it is there from the start");
    // Left by whoever could not delete it.
    media.ensure(&first, 4096).await.unwrap();
    let second = create(&server).await;
    assert_eq!(second, first, "the seed makes the same ids");
    assert!(!media.exists(&second).unwrap());
    server.stop().await;
}
