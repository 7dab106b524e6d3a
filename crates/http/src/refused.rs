//! Why a message is refused.
//!
//! One enum for the whole codec: the caller needs one status and one sentence, and an access
//! log needs one word per reason. What an upstream sends is judged by the same rules; its client is
//! answered 502, whatever [`Refused::status`] says.

use thiserror::Error;

/// Why a message is refused. Each variant has a section of an RFC and a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Refused {
    /// A line ends in LF alone.
    #[error("a line ends in LF without CR; end lines in CRLF")]
    BareLf,
    /// A CR that no LF follows.
    #[error("a CR is not followed by LF; end lines in CRLF")]
    BareCr,
    /// More than one empty line before a request.
    #[error("more than one empty line comes before the request")]
    EmptyLines,
    /// A request line without version, as in HTTP/0.9.
    #[error("the request line is not METHOD TARGET HTTP/1.1")]
    RequestLine,
    /// A method that is no token.
    #[error("the method is not a token")]
    Method,
    /// A version that is neither 1.0 nor 1.1.
    #[error("the version is not HTTP/1.0 or HTTP/1.1")]
    Version,
    /// A status line that is none.
    #[error("the status line is not HTTP/1.1 STATUS REASON")]
    StatusLine,
    /// A request line above the limit.
    #[error("the request line is longer than the limit")]
    TargetTooLong,
    /// A target with a byte that has no place in it.
    #[error("the target is not a URI; percent-encode what is not allowed in it")]
    Target,
    /// A form of target that the method does not have.
    #[error("the method does not have this form of target")]
    TargetForm,
    /// An absolute target of another scheme.
    #[error("the target's scheme is not http or https")]
    TargetScheme,
    /// An absolute target of https where the connection is not secured.
    #[error("the target's scheme is https, but the connection is in plain text")]
    HttpsInPlainText,
    /// A target with a fragment.
    #[error("the target has a fragment; it belongs to the client alone")]
    Fragment,
    /// A user's name or password in the authority.
    #[error("the authority has user information; send it in Authorization")]
    UserInfo,
    /// A path with a percent sign that two hexadecimal digits do not follow.
    #[error("a percent sign in the path is not followed by two hexadecimal digits")]
    Escape,
    /// A path with an encoded NUL.
    #[error("the path has %00")]
    PathNul,
    /// HTTP/1.1 without Host, or HTTP/1.0 with a host neither there nor in the target.
    #[error("the request has no Host field")]
    HostMissing,
    /// Several Host fields.
    #[error("the request has more than one Host field")]
    HostRepeated,
    /// A host that is none.
    #[error("the host is not a name or an address, with a port or without")]
    Host,
    /// A field on several lines.
    #[error("a field continues on the next line (obs-fold)")]
    ObsFold,
    /// Space or tab between a field's name and the colon.
    #[error("there is whitespace between a field's name and the colon")]
    SpaceBeforeColon,
    /// A field name that is no token.
    #[error("a field's name is not a token")]
    FieldName,
    /// A control character in a field's value.
    #[error("a field's value has a control character")]
    FieldValue,
    /// More fields than the limit.
    #[error("the head has more fields than the limit")]
    TooManyFields,
    /// A head or a trailer section above the limit.
    #[error("the head is larger than the limit")]
    HeadTooLarge,
    /// More options in Connection than the limit.
    #[error("Connection has more than 64 options")]
    TooManyOptions,
    /// Content-Length and Transfer-Encoding together.
    #[error("the message has both Content-Length and Transfer-Encoding")]
    LengthAndCoding,
    /// Content-Length several times, as a list, or not as digits.
    #[error("Content-Length is not one number in digits")]
    ContentLength,
    /// A transfer coding besides chunked.
    #[error("a transfer coding is unknown; only chunked is supported")]
    TransferCoding,
    /// Chunked that is not last, or applied twice.
    #[error("chunked is not the last transfer coding, or is applied twice")]
    ChunkedNotLast,
    /// Transfer-Encoding in HTTP/1.0.
    #[error("HTTP/1.0 does not have Transfer-Encoding")]
    CodingInHttp10,
    /// A response 101 that nobody asked for, or to another protocol than was asked for.
    #[error("101 answers no request for an upgrade, or does not name the protocol asked for")]
    Upgrade,
    /// More answers 1xx than the limit, before a response that did not come.
    #[error("more 1xx responses come than the limit, and no other")]
    TooManyInformational,
    /// A body above the limit.
    #[error("the body is larger than the limit")]
    BodyTooLarge,
    /// A body that takes longer than the limit.
    #[error("the body did not come in the time that the limit allows")]
    BodyTooSlow,
    /// A chunk's size that is none.
    #[error("a chunk's size is not one to sixteen hexadecimal digits")]
    ChunkSize,
    /// Chunk extensions above the limit, or with a control character.
    #[error("the chunk extensions are larger than the limit or have a control character")]
    ChunkExtension,
    /// A chunk that is longer or shorter than its size.
    #[error("CRLF does not follow a chunk's data where its size says")]
    ChunkEnd,
    /// A trailer field that frames or routes messages.
    #[error("a trailer field is one of those that frame or route messages")]
    Trailer,
}

impl Refused {
    /// The status that the client is answered with, before its connection is closed.
    pub fn status(self) -> u16 {
        match self {
            Self::BodyTooSlow => 408,
            Self::BodyTooLarge => 413,
            Self::TargetTooLong => 414,
            Self::TooManyFields | Self::HeadTooLarge | Self::TooManyOptions => 431,
            Self::TransferCoding => 501,
            Self::Version => 505,
            _ => 400,
        }
    }

    /// One word, for whoever is answered.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::BodyTooLarge => "body_too_large",
            Self::BodyTooSlow => "slow_client",
            _ => "malformed",
        }
    }

    /// The section that says so.
    pub fn section(self) -> &'static str {
        match self {
            Self::BareLf | Self::BareCr | Self::EmptyLines => "RFC 9112, 2.2",
            Self::RequestLine | Self::TargetTooLong => "RFC 9112, 3",
            Self::Method => "RFC 9112, 3.1",
            Self::Version => "RFC 9110, 2.5",
            Self::StatusLine => "RFC 9112, 4",
            Self::Target | Self::TargetForm | Self::TargetScheme | Self::Fragment => {
                "RFC 9112, 3.2"
            }
            Self::HttpsInPlainText => "RFC 9110, 7.4",
            Self::UserInfo => "RFC 9110, 4.2.4",
            Self::Escape => "RFC 3986, 2.1",
            Self::PathNul => "RFC 3986, 7.3",
            Self::HostMissing | Self::HostRepeated | Self::Host => "RFC 9112, 3.2",
            Self::ObsFold => "RFC 9112, 5.2",
            Self::SpaceBeforeColon => "RFC 9112, 5.1",
            Self::FieldName => "RFC 9110, 5.1",
            Self::FieldValue => "RFC 9110, 5.5",
            Self::TooManyFields | Self::HeadTooLarge => "RFC 6585, 5",
            Self::TooManyOptions => "RFC 9110, 7.6.1",
            Self::TransferCoding | Self::CodingInHttp10 => "RFC 9112, 6.1",
            Self::LengthAndCoding | Self::ContentLength | Self::ChunkedNotLast => "RFC 9112, 6.3",
            Self::Upgrade => "RFC 9110, 7.8",
            Self::TooManyInformational => "RFC 9110, 15.2",
            Self::BodyTooSlow => "RFC 9110, 15.5.9",
            Self::BodyTooLarge => "RFC 9110, 15.5.14",
            Self::ChunkSize | Self::ChunkEnd => "RFC 9112, 7.1",
            Self::ChunkExtension => "RFC 9112, 7.1.1",
            Self::Trailer => "RFC 9110, 6.5.1",
        }
    }
}
