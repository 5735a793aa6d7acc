// Package ext is where builds of Traefik add fields to its configuration. Traefik's own has none, and is not in its module's archive.
package ext

// HTTP has the fields that are added to the HTTP configuration.
type HTTP struct{}

// Router has the fields that are added to a router.
type Router struct{}
