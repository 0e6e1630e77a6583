//! Validation of AppArmor profiles.

use super::super::app_armor::PATH_LIMIT;
use super::LOCALHOST_PROFILE;
use super::fields::Fields;

/// The profile in a security context.
pub(super) fn profile(context: &Fields<'_>) {
    let Some(profile) = context.given("appArmorProfile") else {
        return;
    };
    match profile.text("type") {
        "Localhost" => localhost_profile(&profile),
        "RuntimeDefault" | "Unconfined" if profile.has(LOCALHOST_PROFILE) => {
            let why = "can only be set when AppArmor type is Localhost";
            profile.invalid(LOCALHOST_PROFILE, profile.text(LOCALHOST_PROFILE), why);
        }
        "" => profile.required("type", "type is required when appArmorProfile is set"),
        _ => profile.one_of("type", &["Localhost", "RuntimeDefault", "Unconfined"]),
    }
}

fn localhost_profile(profile: &Fields<'_>) {
    let path = profile.text(LOCALHOST_PROFILE);
    if path.trim() != path {
        profile.invalid(LOCALHOST_PROFILE, path, "must not be padded with whitespace");
    } else if path.is_empty() {
        profile.required(LOCALHOST_PROFILE, "must be set when AppArmor type is Localhost");
    }
    if path.len() > PATH_LIMIT {
        profile.too_long(LOCALHOST_PROFILE, PATH_LIMIT);
    }
}
