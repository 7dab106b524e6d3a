//! The dictionary that precedes the compressed headers of a connection, as SPDY/3 has it.

/// Its first part: words, each behind its length in four bytes.
const WORDS: &str = "options head post put delete trace accept accept-charset accept-encoding \
    accept-language accept-ranges age allow authorization cache-control connection content-base \
    content-encoding content-language content-length content-location content-md5 content-range \
    content-type date etag expect expires from host if-match if-modified-since if-none-match \
    if-range if-unmodified-since last-modified location max-forwards pragma proxy-authenticate \
    proxy-authorization range referer retry-after server te trailer transfer-encoding upgrade \
    user-agent vary via warning www-authenticate method get status 200_OK version HTTP/1.1 url \
    public set-cookie keep-alive origin";
/// Its second part, which is plain text.
const TEXT: &str = "100101201202205206300302303304305306307402405406407408409410411412413414415416\
    417502504505203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad \
    Request401 Unauthorized403 Forbidden404 Not Found500 Internal Server Error501 Not \
    Implemented503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 \
    Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,\
    application/xml,application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzip,\
    deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0.";
/// The Adler-32 sum of the dictionary, by which a zlib stream names it.
pub(super) const ID: u32 = 0xe3c6_a7c2;

/// The dictionary.
pub(super) fn dictionary() -> Vec<u8> {
    let mut all = Vec::new();
    for word in WORDS.split(' ') {
        // One word has a blank of its own.
        let word = word.replace('_', " ");
        all.extend_from_slice(&u32::try_from(word.len()).expect("words are short").to_be_bytes());
        all.extend_from_slice(word.as_bytes());
    }
    all.extend_from_slice(TEXT.as_bytes());
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_sum_is_known() {
        let add = |(low, high): (u32, u32), byte: &u8| {
            let low = (low + u32::from(*byte)) % 65_521;
            (low, (high + low) % 65_521)
        };
        let (low, high) = dictionary().iter().fold((1, 0), add);
        assert_eq!(high << 16 | low, ID);
    }
}
