#!/usr/bin/env bash
# Builds the documentation site with mdBook and prints the path of its index.html:
#   bash docs/site/build.sh [OUTDIR]        (default target/site)
# docs/site/SUMMARY.md lists the pages. The first run installs mdBook and downloads Mermaid, which
# draws the diagrams, into ~/.cache/millpond. To update them, change the versions and the checksum.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

mdbook_version=0.5.4
mermaid_version=12.3.0
mermaid_sha256=336df803d87a38b70a01e736e666c8f7601d2ce42f5e47c8fafe5d721074b9a3
out=$(realpath -m "${1:-${CARGO_TARGET_DIR:-target}/site}")
cache=$HOME/.cache/millpond
mdbook=$cache/mdbook-$mdbook_version/bin/mdbook
mermaid=$cache/mermaid-$mermaid_version.min.js
mkdir -p "$cache"
book=$(mktemp -d)
trap 'rm -rf "$book"' EXIT

fail() {
  echo "docs: $*" >&2
  exit 1
}

if [[ ! -x $mdbook ]]; then
  echo "docs: installing mdBook $mdbook_version: some minutes, once" >&2
  # Without the target folder of the workspace: mdBook does not belong to it.
  env -u CARGO_TARGET_DIR "${CARGO:-cargo}" install mdbook --locked --quiet \
    --version "$mdbook_version" --root "${mdbook%/bin/mdbook}" >&2 ||
    fail "mdBook $mdbook_version cannot be installed"
fi

if [[ ! -f $mermaid ]]; then
  if package=$(cd "$book" && npm pack --silent "mermaid@$mermaid_version"); then
    tar -xzOf "$book/$package" package/dist/mermaid.min.js >"$book/mermaid.min.js"
    mv "$book/mermaid.min.js" "$mermaid"
  else
    echo "docs: warning: npm is missing or cannot download Mermaid: diagrams stay as code" >&2
  fi
fi
if [[ -f $mermaid ]]; then
  sha256sum --status -c <<<"$mermaid_sha256  $mermaid" ||
    fail "$mermaid has a wrong checksum: remove the file and try again"
fi

# The book has the folders of the repository, so links between pages work unchanged.
src=$book/src
mkdir "$src"
cp docs/site/book.toml docs/site/theme.js docs/site/theme.css "$book"
sed -E 's|\]\(\.\./\.\./|](|; t; s|\]\(\.\./|](docs/|' docs/site/SUMMARY.md >"$src/SUMMARY.md"
mapfile -t pages < <(grep -oP '\]\(\K[^)]+' "$src/SUMMARY.md")
cp --parents -t "$src" "${pages[@]}" docs/images/* || fail "docs/site/SUMMARY.md has a wrong entry"
[[ ! -f $mermaid ]] || cp "$mermaid" "$src/mermaid.min.js"

# Links to files and folders that are not in the book lead to the repository on the web. Without
# its address they become code.
repository=$(sed -nE 's|^repository = "(https://[^"]+)"|\1|p' Cargo.toml)
for page in "${pages[@]}"; do
  while read -r link; do
    path=$(realpath -m --relative-to=. "$(dirname "$page")/$link")
    if [[ $link == *://* || ! -e $path || -f $src/$path ]]; then
      continue
    elif [[ -f $src/$path/README.md ]]; then
      sed -i "s|](${link//./\\.})|](${link%/}/README.md)|" "$src/$page"
    elif [[ -n $repository ]]; then
      sed -i "s|](${link//./\\.}\([)#]\)|]($repository/blob/HEAD/$path\1|" "$src/$page"
    else
      sed -i "s|\[\`\?\([^]\`]*\)\`\?\](${link//./\\.}[^)]*)|\`\1\`|" "$src/$page"
    fi
  done < <(grep -oP '\]\(\K[^)#\s]+' "$page" | sort -u)
  # mdBook renames README.md to index.md.
  sed -i -E 's|(\]\([^):]*)README\.md|\1index.md|g' "$src/$page"
done

[[ -z $repository ]] || export MDBOOK_OUTPUT__HTML__GIT_REPOSITORY_URL=$repository
rm -rf "$out"
MDBOOK_LOG=${MDBOOK_LOG:-warn} "$mdbook" build "$book" --dest-dir "$out" >&2
echo "$out/index.html"
