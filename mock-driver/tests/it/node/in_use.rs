//! Volumes that cannot be taken away yet, since somebody has files open there.

use super::*;

#[tokio::test]
async fn target_in_use_leaves_no_place_for_a_second_one() {
    if !privilege::is_there() {
        return;
    }
    let mut site = Site::start(Choice::Loop).await;
    let volume = site
        .attached("a", 64 * MIB, mount(Mode::SingleNodeSingleWriter))
        .await;
    site.stage(&volume).await.unwrap();
    site.publish(&volume, "t1").await.unwrap();
    let open = fs::File::create(site.target("t1").join("file")).unwrap();
    for _ in 0..2 {
        assert_eq!(site.unpublish(&volume, "t1").await, Err(Code::FailedPrecondition));
        assert_eq!(site.publish(&volume, "t2").await, Err(Code::FailedPrecondition));
        assert!(!site.target("t2").exists());
    }
    drop(open);
    assert_eq!(site.unpublish(&volume, "t1").await, Ok(()));
    assert_eq!(site.publish(&volume, "t2").await, Ok(()));
    site.end().await;
}

#[tokio::test]
async fn staging_path_in_use_leaves_no_place_for_another_nor_for_other_options() {
    if !privilege::is_there() {
        return;
    }
    let mut site = Site::start(Choice::Loop).await;
    let volume = site.attached("a", 64 * MIB, mount(Mode::SingleNodeWriter)).await;
    let otherwise = Volume {
        capability: with_flags(volume.capability.clone(), &["noatime"]),
        ..volume.clone()
    };
    site.stage(&volume).await.unwrap();
    let staging = site.staging(&volume);
    let elsewhere = site.server.path("staging").join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let open = fs::File::create(staging.join("file")).unwrap();
    assert_eq!(site.unstage(&volume).await, Err(Code::FailedPrecondition));
    assert_eq!(
        site.stage_at(&volume, &elsewhere).await,
        Err(Code::FailedPrecondition)
    );
    assert_eq!(site.stage(&otherwise).await, Err(Code::FailedPrecondition));
    // What is there is what is asked for.
    assert_eq!(site.stage(&volume).await, Ok(()));
    assert_eq!(site.unstage(&volume).await, Err(Code::FailedPrecondition));
    drop(open);
    assert_eq!(site.stage(&otherwise).await, Ok(()));
    let noatime = rustix::fs::StatVfsMountFlags::NOATIME;
    assert!(rustix::fs::statvfs(&staging).unwrap().f_flag.contains(noatime));
    assert_eq!(site.unstage(&volume).await, Ok(()));
    assert_eq!(site.stage_at(&volume, &elsewhere).await, Ok(()));
    site.end().await;
}

#[tokio::test]
async fn target_that_is_in_use_for_a_moment_is_waited_for() {
    if !privilege::is_there() {
        return;
    }
    let mut site = Site::start(Choice::Loop).await;
    let volume = site.attached("a", 64 * MIB, mount(Mode::SingleNodeWriter)).await;
    site.stage(&volume).await.unwrap();
    site.publish(&volume, "t").await.unwrap();
    let open = fs::File::create(site.target("t").join("file")).unwrap();
    // As a program does that is being started and inherits the file, until it runs.
    let moment = async {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        drop(open);
    };
    let (unpublished, ()) = tokio::join!(site.unpublish(&volume, "t"), moment);
    assert_eq!(unpublished, Ok(()));
    site.end().await;
}
