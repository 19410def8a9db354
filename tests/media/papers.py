"""PDFs made on the spot, by ISO 32000-1."""


def pdf(*pages, encrypted=False, listed=None):
    """One with a line of text on each page. listed: how many pages it says that it has, by naming the last one
    again."""
    numbers = [4 + 2 * index for index in range(len(pages))]
    kids = " ".join(f"{number} 0 R" for number in numbers + numbers[-1:] * ((listed or len(pages)) - len(pages)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {listed or len(pages)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for index, text in enumerate(pages):
        font, drawing = "<< /Font << /F1 3 0 R >> >>", f"BT /F1 24 Tf 20 100 Td ({text}) Tj ET"
        page = (
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 300 200] /Resources {font} /Contents {5 + 2 * index} 0 R >>"
        )
        objects += [page, f"<< /Length {len(drawing)} >>\nstream\n{drawing}\nendstream"]
    body, places = "%PDF-1.4\n", []
    for number, text in enumerate(objects, 1):
        places.append(len(body))
        body += f"{number} 0 obj\n{text}\nendobj\n"
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    locked = f"/Encrypt << /Filter /Standard /V 1 /R 2 /O <{'41' * 32}> /U <{'42' * 32}> /P -4 >> /ID [<00> <00>]"
    trailer = f"<< /Size {len(objects) + 1} /Root 1 0 R {locked if encrypted else ''} >>"
    head = f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}"
    return f"{body}{head}trailer\n{trailer}\nstartxref\n{len(body)}\n%%EOF\n".encode()
