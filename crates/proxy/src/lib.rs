//! Role: the node proxy, layer 4
