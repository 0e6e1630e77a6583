use std::collections::BTreeMap;

use tokio::time::Instant;

use super::*;
use crate::driver::Settings;

mod lost;

const MIB: u64 = 1 << 20;

async fn modify(driver: &Driver, volume: &str, key: &str, value: &str) {
    let asked = BTreeMap::from([(key.to_owned(), value.to_owned())]);
    driver
        .store
        .change(|array| array.modify_volume(volume, &asked))
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn mutable_latency_overrides_that_of_the_class() {
    let (driver, _) = Driver::open(Settings::default()).unwrap();
    let with_latency = |name: &str, latency: &str| CreateVolumeParams {
        name: name.to_owned(),
        parameters: BTreeMap::from([("latency".to_owned(), latency.to_owned())]),
        ..CreateVolumeParams::default()
    };
    let made = driver.create_volume(&with_latency("a", "250")).await.unwrap();
    for (modified, millis) in [(None, 250), (Some("10"), 10), (Some("0"), 0)] {
        if let Some(latency) = modified {
            modify(&driver, made.id.as_str(), "latency", latency).await;
        }
        let start = Instant::now();
        driver.apply_qos_latency(made.id.as_str()).await;
        assert_eq!(start.elapsed(), Duration::from_millis(millis), "{modified:?}");
    }
    let refused = driver
        .create_volume(&with_latency("b", "slow"))
        .await
        .unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
    assert!(refused.message().contains("parameters") && refused.message().contains("latency"));
}
