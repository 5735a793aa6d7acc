module kingpost.example/bexpr

go 1.20

require github.com/hashicorp/go-bexpr v0.1.2
