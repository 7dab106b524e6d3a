//! Role: the layer-7 proxy. It comes with layer 7; a service that names a waypoint is refused until
//! then
