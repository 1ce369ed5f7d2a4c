//! Access control lists: rights of others than the owner on a bucket or an object.
//!
//! A list is stored in the record of its bucket or object if it grants more than full control to
//! the owner. Grants and permissions are those of "Access control list (ACL) overview" in the AWS
//! user guide.

use s3s::dto::{self, AccessControlPolicy, Type};
use s3s::{S3Error, S3ErrorCode, S3Result};
use serde::{Deserialize, Serialize};

use crate::error::{absent, custom, refuse};

/// Grants of a list at most, as in AWS.
const GRANTS_MAX: usize = 100;
/// Prefix of the names of AWS groups.
const GROUPS: &str = "http://acs.amazonaws.com/groups/";

/// The recipient of a grant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Grantee {
    /// Requesters with an access key of this tenant.
    Tenant(String),
    /// All requesters, including those without an access key.
    Everyone,
    /// Requesters with any access key.
    Authenticated,
    /// The log delivery group of AWS; this gateway has no such service.
    LogDelivery,
}

/// The right that a grant gives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Permission {
    /// All of the others.
    #[default]
    FullControl,
    /// On a bucket: list it. On an object: read it.
    Read,
    /// On a bucket: write and remove objects in it.
    Write,
    /// Read the list.
    ReadAcp,
    /// Replace the list.
    WriteAcp,
}

/// The grants of a bucket or an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Acl(Vec<(Grantee, Permission)>);

/// The list that a request asks for: a canned list by name, or grants in headers.
#[derive(Debug, Default)]
pub(crate) struct Wished<'a> {
    pub(crate) canned: Option<&'a str>,
    pub(crate) grants: [(Option<&'a str>, Permission); 5],
}

/// The [`Wished`] list of an input of `s3s`; inputs of buckets and of lists have one more field.
macro_rules! wished {
    ($input:expr $(, $write:ident)?) => {{
        use $crate::acl::Permission;
        #[allow(unused_mut, unused_assignments, reason = "objects are not written by grants")]
        let mut write = None;
        $(write = $input.$write.as_deref();)?
        $crate::acl::Wished {
            canned: $input.acl.as_ref().map(|acl| acl.as_str()),
            grants: [
                ($input.grant_read.as_deref(), Permission::Read),
                (write, Permission::Write),
                ($input.grant_read_acp.as_deref(), Permission::ReadAcp),
                ($input.grant_write_acp.as_deref(), Permission::WriteAcp),
                ($input.grant_full_control.as_deref(), Permission::FullControl),
            ],
        }
    }};
}
pub(crate) use wished;

impl Permission {
    const ALL: [Self; 5] =
        [Self::FullControl, Self::Read, Self::Write, Self::ReadAcp, Self::WriteAcp];

    const fn name(self) -> &'static str {
        match self {
            Self::FullControl => dto::Permission::FULL_CONTROL,
            Self::Read => dto::Permission::READ,
            Self::Write => dto::Permission::WRITE,
            Self::ReadAcp => dto::Permission::READ_ACP,
            Self::WriteAcp => dto::Permission::WRITE_ACP,
        }
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|permission| permission.name() == name)
    }
}

impl Grantee {
    fn group(&self) -> Option<&'static str> {
        match self {
            Self::Tenant(_) => None,
            Self::Everyone => Some("global/AllUsers"),
            Self::Authenticated => Some("global/AuthenticatedUsers"),
            Self::LogDelivery => Some("s3/LogDelivery"),
        }
    }

    fn of_group(uri: &str) -> S3Result<Self> {
        let name = uri.strip_prefix(GROUPS);
        [Self::Everyone, Self::Authenticated, Self::LogDelivery]
            .into_iter()
            .find(|grantee| grantee.group() == name)
            .ok_or_else(|| refuse(S3ErrorCode::InvalidArgument, "Invalid group uri"))
    }

    fn told(&self) -> dto::Grantee {
        let id = if let Self::Tenant(tenant) = self { Some(tenant.clone()) } else { None };
        let kind = if id.is_some() { Type::CANONICAL_USER } else { Type::GROUP };
        dto::Grantee {
            display_name: id.clone(),
            email_address: None,
            id,
            type_: Type::from_static(kind),
            uri: self.group().map(|group| format!("{GROUPS}{group}")),
        }
    }

    fn of(told: &dto::Grantee) -> S3Result<Self> {
        match (told.type_.as_str(), &told.id, &told.uri) {
            (Type::CANONICAL_USER, Some(id), _) => Ok(Self::Tenant(id.clone())),
            (Type::GROUP, _, Some(uri)) => Self::of_group(uri),
            (Type::AMAZON_CUSTOMER_BY_EMAIL, ..) => Err(by_email()),
            _ => Err(malformed()),
        }
    }

    /// Whether the grant applies to a tenant; `None` is a requester without an access key.
    fn includes(&self, tenant: Option<&str>) -> bool {
        match self {
            Self::Tenant(name) => tenant == Some(name),
            Self::Everyone => true,
            Self::Authenticated => tenant.is_some(),
            Self::LogDelivery => false,
        }
    }
}

fn malformed() -> S3Error {
    S3ErrorCode::MalformedACLError.into()
}

fn by_email() -> S3Error {
    let message = "The e-mail address you provided does not match any account on record.";
    refuse(S3ErrorCode::UnresolvableGrantByEmailAddress, message)
}

/// The grantees of a header: `id="…", uri="…"`.
fn grantees(text: &str) -> S3Result<Vec<Grantee>> {
    let one = |part: &str| {
        let (kind, value) = part.trim().split_once('=').ok_or_else(|| {
            let message = "Argument format not recognized: a grant is id=\"…\" or uri=\"…\"";
            refuse(S3ErrorCode::InvalidArgument, message)
        })?;
        let value = value.trim().trim_matches('"');
        match kind.trim() {
            "id" => Ok(Grantee::Tenant(value.to_owned())),
            "uri" => Grantee::of_group(value),
            "emailAddress" => Err(by_email()),
            _ => Err(refuse(S3ErrorCode::InvalidArgument, "Argument format not recognized")),
        }
    };
    text.split(',').map(one).collect()
}

impl Wished<'_> {
    /// Whether the request asks for a list.
    pub(crate) fn is_any(&self) -> bool {
        self.canned.is_some() || self.grants.iter().any(|(text, _)| text.is_some())
    }

    /// The requested list for something that `owner` owns; none if the request has none.
    ///
    /// # Errors
    /// `InvalidRequest` for both kinds at once, `InvalidArgument`,
    /// `UnresolvableGrantByEmailAddress`, and `NotImplemented` for a canned list that is meant for
    /// services of AWS.
    pub(crate) fn list(&self, owner: &str, owner_of_bucket: &str) -> S3Result<Option<Acl>> {
        let mut grants = Vec::new();
        for (text, permission) in self.grants {
            let found = text.map_or(Ok(Vec::new()), grantees)?;
            grants.extend(found.into_iter().map(|grantee| (grantee, permission)));
        }
        match self.canned {
            Some(_) if !grants.is_empty() => Err(refuse(
                S3ErrorCode::InvalidRequest,
                "Specifying both Canned ACLs and Header Grants is not allowed",
            )),
            Some(name) => Acl::canned(name, owner, owner_of_bucket).map(Some),
            None if grants.is_empty() => Ok(None),
            None => Acl::checked(grants).map(Some),
        }
    }
}

impl Acl {
    /// A list that gives the owner full control and nobody else any rights.
    pub(crate) fn private(owner: &str) -> Self {
        Self(vec![(Grantee::Tenant(owner.to_owned()), Permission::FullControl)])
    }

    fn checked(grants: Vec<(Grantee, Permission)>) -> S3Result<Self> {
        if grants.len() > GRANTS_MAX {
            return Err(malformed());
        }
        let mut once = Vec::with_capacity(grants.len());
        for grant in grants {
            if !once.contains(&grant) {
                once.push(grant);
            }
        }
        Ok(Self(once))
    }

    fn canned(name: &str, owner: &str, owner_of_bucket: &str) -> S3Result<Self> {
        let bucket = || Grantee::Tenant(owner_of_bucket.to_owned());
        let more = match name {
            "private" => vec![],
            "public-read" => vec![(Grantee::Everyone, Permission::Read)],
            "public-read-write" => {
                vec![(Grantee::Everyone, Permission::Read), (Grantee::Everyone, Permission::Write)]
            }
            "authenticated-read" => vec![(Grantee::Authenticated, Permission::Read)],
            "log-delivery-write" => vec![
                (Grantee::LogDelivery, Permission::Write),
                (Grantee::LogDelivery, Permission::ReadAcp),
            ],
            "bucket-owner-read" | "bucket-owner-full-control" if owner == owner_of_bucket => vec![],
            "bucket-owner-read" => vec![(bucket(), Permission::Read)],
            "bucket-owner-full-control" => vec![(bucket(), Permission::FullControl)],
            "aws-exec-read" => return Err(absent("The canned ACL 'aws-exec-read'")),
            _ => return Err(refuse(S3ErrorCode::InvalidArgument, "This is not a canned ACL")),
        };
        let mut list = Self::private(owner);
        list.0.extend(more);
        Ok(list)
    }

    /// Reads the document of a client; also returns the owner that it names.
    ///
    /// # Errors
    /// `MalformedACLError`, `InvalidArgument`, `UnresolvableGrantByEmailAddress`.
    pub(crate) fn of(told: &AccessControlPolicy) -> S3Result<(Self, Option<&str>)> {
        let grants = told.grants.as_deref().unwrap_or_default();
        let grants = grants.iter().map(|grant| {
            let permission = grant
                .permission
                .as_ref()
                .and_then(|permission| Permission::named(permission.as_str()));
            let grantee = grant.grantee.as_ref().ok_or_else(malformed)?;
            Ok((Grantee::of(grantee)?, permission.ok_or_else(malformed)?))
        });
        let list = Self::checked(grants.collect::<S3Result<Vec<_>>>()?)?;
        Ok((list, told.owner.as_ref().and_then(|owner| owner.id.as_deref())))
    }

    /// The grants for an answer: groups first, as in other stores.
    pub(crate) fn told(&self) -> Vec<dto::Grant> {
        let grant = |(grantee, permission): &(Grantee, Permission)| dto::Grant {
            grantee: Some(grantee.told()),
            permission: Some(dto::Permission::from_static(permission.name())),
        };
        let is_group = |grant: &&(Grantee, Permission)| grant.0.group().is_some();
        let (groups, tenants): (Vec<_>, Vec<_>) = self.0.iter().partition(is_group);
        groups.into_iter().chain(tenants).map(grant).collect()
    }

    /// Whether a tenant has a permission; `None` is a requester without an access key.
    /// `is_public_ignored` leaves out grants to groups.
    pub(crate) fn allows(
        &self,
        tenant: Option<&str>,
        what: Permission,
        is_public_ignored: bool,
    ) -> bool {
        self.0.iter().any(|(grantee, permission)| {
            let is_for_tenant = matches!(grantee, Grantee::Tenant(_));
            (*permission == what || *permission == Permission::FullControl)
                && grantee.includes(tenant)
                && (is_for_tenant || !is_public_ignored)
        })
    }

    /// Whether it grants something to everyone, or to everyone with an access key.
    pub(crate) fn is_public(&self) -> bool {
        self.0
            .iter()
            .any(|(grantee, _)| matches!(grantee, Grantee::Everyone | Grantee::Authenticated))
    }

    /// Whether it grants nothing except full control to the owner.
    pub(crate) fn is_private(&self, owner: &str) -> bool {
        *self == Self::private(owner)
    }

    /// The tenants named in the list.
    pub(crate) fn tenants(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|(grantee, _)| match grantee {
            Grantee::Tenant(name) => Some(name.as_str()),
            _ => None,
        })
    }
}

/// The error for a list in a bucket that has lists switched off.
pub(crate) fn switched_off() -> S3Error {
    let message = "The bucket does not allow ACLs".to_owned();
    custom("AccessControlListNotSupported", hyper::StatusCode::BAD_REQUEST, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canned(name: &str) -> Acl {
        Acl::canned(name, "me", "host").unwrap()
    }

    #[test]
    fn canned_lists_allow_what_their_names_say() {
        let (me, other) = (Some("me"), Some("other"));
        for name in ["private", "public-read", "bucket-owner-read", "log-delivery-write"] {
            for what in Permission::ALL {
                assert!(canned(name).allows(me, what, true), "{name} {what:?}");
            }
            assert!(!canned(name).allows(other, Permission::Write, false), "{name}");
        }
        let reads = |name: &str, tenant| canned(name).allows(tenant, Permission::Read, false);
        assert!(reads("public-read", None) && reads("public-read", other));
        assert!(!reads("authenticated-read", None) && reads("authenticated-read", other));
        assert!(!reads("private", other) && !reads("private", None));
        assert!(reads("bucket-owner-read", Some("host")) && !reads("bucket-owner-read", other));
        let writes = |tenant, ignored| {
            canned("public-read-write").allows(tenant, Permission::Write, ignored)
        };
        assert!(writes(None, false) && !writes(None, true) && !writes(other, true));
        assert!(Acl::canned("aws-exec-read", "me", "me").is_err());
        assert!(Acl::canned("public-ready", "me", "me").is_err());
    }

    #[test]
    fn grants_in_headers() {
        let wished = |read: Option<&'static str>, canned| {
            let mut wished = Wished { canned, ..Wished::default() };
            wished.grants[0] = (read, Permission::Read);
            wished.list("me", "me")
        };
        assert_eq!(wished(None, None).unwrap(), None);
        let uri = "id=\"other\", uri=\"http://acs.amazonaws.com/groups/global/AllUsers\"";
        let list = wished(Some(uri), None).unwrap().unwrap();
        assert!(list.allows(None, Permission::Read, false) && list.is_public());
        assert!(list.allows(Some("other"), Permission::Read, true));
        assert!(!list.allows(Some("other"), Permission::ReadAcp, true));
        for wrong in ["other", "name=x", "uri=\"http://example.com\"", "emailAddress=a@b.c", ""] {
            assert!(wished(Some(wrong), None).is_err(), "{wrong}");
        }
        assert!(wished(Some("id=other"), Some("private")).is_err());
    }

    #[test]
    fn lists_come_back_as_they_were() {
        for name in ["private", "public-read-write", "log-delivery-write", "bucket-owner-read"] {
            let list = canned(name);
            let policy = AccessControlPolicy { grants: Some(list.told()), owner: None };
            let (back, owner) = Acl::of(&policy).unwrap();
            assert_eq!((back.told(), owner), (list.told(), None), "{name}");
            let text = serde_json::to_vec(&list).unwrap();
            assert_eq!(serde_json::from_slice::<Acl>(&text).unwrap(), list);
        }
        let many = vec![canned("private").told()[0].clone(); GRANTS_MAX + 1];
        assert!(Acl::of(&AccessControlPolicy { grants: Some(many), owner: None }).is_err());
    }
}
