//! Volumes that cannot be unmounted yet because a process has open files on them.

use super::*;

#[tokio::test]
async fn target_in_use_cannot_be_replaced_by_a_second_one() {
    if !privilege::is_there() {
        return;
    }
    let mut env = TestEnv::start(Choice::Loop).await;
    let volume = env
        .attached("a", 64 * MIB, mount(Mode::SingleNodeSingleWriter))
        .await;
    env.stage(&volume).await.unwrap();
    env.publish(&volume, "t1").await.unwrap();
    let open = fs::File::create(env.target("t1").join("file")).unwrap();
    for _ in 0..2 {
        assert_eq!(env.unpublish(&volume, "t1").await, Err(Code::FailedPrecondition));
        assert_eq!(env.publish(&volume, "t2").await, Err(Code::FailedPrecondition));
        assert!(!env.target("t2").exists());
    }
    drop(open);
    assert_eq!(env.unpublish(&volume, "t1").await, Ok(()));
    assert_eq!(env.publish(&volume, "t2").await, Ok(()));
    env.end().await;
}

#[tokio::test]
async fn second_staging_path_and_other_options_are_refused_while_in_use() {
    if !privilege::is_there() {
        return;
    }
    let mut env = TestEnv::start(Choice::Loop).await;
    let volume = env.attached("a", 64 * MIB, mount(Mode::SingleNodeWriter)).await;
    let otherwise = Volume {
        capability: with_flags(volume.capability.clone(), &["noatime"]),
        ..volume.clone()
    };
    env.stage(&volume).await.unwrap();
    let staging = env.staging(&volume);
    let elsewhere = env.server.path("staging").join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let open = fs::File::create(staging.join("file")).unwrap();
    assert_eq!(env.unstage(&volume).await, Err(Code::FailedPrecondition));
    assert_eq!(
        env.stage_at(&volume, &elsewhere).await,
        Err(Code::FailedPrecondition)
    );
    assert_eq!(env.stage(&otherwise).await, Err(Code::FailedPrecondition));
    // The path has the requested state.
    assert_eq!(env.stage(&volume).await, Ok(()));
    assert_eq!(env.unstage(&volume).await, Err(Code::FailedPrecondition));
    drop(open);
    assert_eq!(env.stage(&otherwise).await, Ok(()));
    let noatime = rustix::fs::StatVfsMountFlags::NOATIME;
    assert!(rustix::fs::statvfs(&staging).unwrap().f_flag.contains(noatime));
    assert_eq!(env.unstage(&volume).await, Ok(()));
    assert_eq!(env.stage_at(&volume, &elsewhere).await, Ok(()));
    env.end().await;
}

#[tokio::test]
async fn unpublish_retries_a_briefly_busy_target() {
    if !privilege::is_there() {
        return;
    }
    let mut env = TestEnv::start(Choice::Loop).await;
    let volume = env.attached("a", 64 * MIB, mount(Mode::SingleNodeWriter)).await;
    env.stage(&volume).await.unwrap();
    env.publish(&volume, "t").await.unwrap();
    let open = fs::File::create(env.target("t").join("file")).unwrap();
    // Like a child process that has an inherited descriptor until its exec.
    let moment = async {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        drop(open);
    };
    let (unpublished, ()) = tokio::join!(env.unpublish(&volume, "t"), moment);
    assert_eq!(unpublished, Ok(()));
    env.end().await;
}
